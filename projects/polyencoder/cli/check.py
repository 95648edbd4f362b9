"""`polyencoder check NAME...`: verifies models and indexes, and that ParlAI can safely read a model file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from polyencoder.cli.shared.output import say
from polyencoder.encoding.graph_files import DESCRIPTION, check_graphs
from polyencoder.errors import CheckpointError
from polyencoder.progress import create_progress
from polyencoder.storage.names import CONFIG, MODULE_CONFIG, WEIGHTS


def check(names: list[str], /, *, trust: tuple[str, ...] = (), progress: bool | None = None) -> None:
    """Verify the checksums of models and indexes, and that no code of their own runs when ParlAI reads a model file.

    Every byte is read, and an error names the damaged file; nothing is repaired. `parlai ... -mf FILE` reads FILE.opt
    before it knows whose model it is, takes what is not JSON for a pickle, and imports the agent that it names. So of a
    model file this checks FILE.opt and its checkpoint's first, then the weights.

    Args:
        names: Model folders and index folders; model files (FILE with FILE.opt beside it), or .opt files as for
            ParlAI's --init-opt.
        trust: A module or package that the options may name because you trust its code; repeatable.
        progress: Show progress on standard error; the default in a terminal.
    """
    for name in names:
        if name.endswith(".opt"):
            from polyencoder.importing.options import check_options

            check_options(name, named=trust)
            say(f"{name}: JSON, and names no code outside ParlAI and this project")
        elif os.path.isdir(name):
            _check_folder(Path(name), progress=progress)
        else:
            _check_model(name, named=trust, progress=progress)


def _check_folder(folder: Path, *, progress: bool | None) -> None:
    from polyencoder.index.folder.verify import verify

    graphs, weights = (folder / DESCRIPTION).is_file(), (folder / WEIGHTS).is_file()
    if not (weights or graphs or (folder / CONFIG).is_file() or (folder / MODULE_CONFIG).is_file()):
        verify(folder, progress=progress)
        say(f"{folder}: an index, undamaged")
        return
    if weights or not graphs:
        from polyencoder.checkpoint import check_folder

        size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        with create_progress(step="checking", unit="B", show=progress, total=size) as done:
            check_folder(folder, progress=done.update)
        say(f"{folder}: a model, undamaged")
    if graphs:
        size = sum(path.stat().st_size for path in folder.glob("*.onnx"))
        with create_progress(step="checking", unit="B", show=progress, total=size) as done:
            names = check_graphs(folder, progress=done.update)
        say(f"{folder}: {', '.join(names)}: undamaged")


def _check_model(file: str, *, named: Sequence[str], progress: bool | None) -> None:
    from polyencoder.checkpoint import check_archive, read_states
    from polyencoder.importing.options import check_options, find_model_option_files

    options = find_model_option_files(file)
    if not options and not os.path.exists(file):
        raise CheckpointError(f"{file:.200}: no such model, index or .opt file")
    for path in options:
        check_options(path, named=named)
        say(f"{path}: JSON, and names no code outside ParlAI and this project")
    weights = [name for name in (file, f"{file}.checkpoint") if os.path.exists(name)]
    for name in weights:
        read_states(name)
        with create_progress(step="checking", unit="B", show=progress, total=os.path.getsize(name)) as done:
            verified = check_archive(name, progress=done.update)
        say(f"{name}: weights, readable without running code" + (", undamaged" if verified else ""))
