"""Looks at an index folder without its model: a summary, and its checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from polyencoder.errors import CheckpointError
from polyencoder.index.folder.catalogue import Catalogue, File
from polyencoder.index.folder.change import compute_checksum
from polyencoder.index.folder.database import Database
from polyencoder.index.folder.files import DATABASE
from polyencoder.index.folder.state import State
from polyencoder.index.meta import IndexMeta
from polyencoder.index.model import IndexModel
from polyencoder.progress import create_progress


def describe_folder(folder: Path) -> list[str]:
    """A summary of an index, in lines; neither its model nor FAISS is needed. Errors as in `FolderIndex.open`."""
    with closing(Database(folder)) as database, database.snapshot() as catalogue:
        meta = IndexMeta.from_json(catalogue.read_description(), folder)
        dead = len(catalogue.find_dead_rows())
        files, words = catalogue.list_files(), catalogue.words is not None
    vectors = f"{meta.rows:,} of {meta.dim} numbers, {meta.dtype}" + (f", {dead:,} removed" if dead else "")
    lines = meta.summarize(folder, entries=meta.entries, vectors=vectors)
    if (tokens := meta.tokens) is not None:
        size = sum(file.bytes for file in files if file.name.endswith((".tokens.npy", ".offsets.npy")))
        lines.append(f"tokens: of {tokens.dim} numbers, {tokens.dtype}; {size / max(1, meta.rows):,.0f} bytes per text")
    if words:
        lines.append("words: of all texts, for hybrid searches")
    if (faiss := meta.faiss) is None:
        return [*lines, "search: everything is scored (no FAISS index)"]
    lines.append(f"search: {faiss}")
    if (tuned := faiss.tuned) is None:
        return [*lines, "recall: not measured (`polyencoder update` measures it)"]
    goal = "wanted" if tuned.reached else "wanted, and not reached"
    since = "" if tuned.rows == meta.rows else f"; measured with {tuned.rows:,} vectors"
    return [*lines, f"recall: {tuned.recall:g} {goal}; {tuned}{since}"]


def verify(folder: str | os.PathLike[str], *, progress: bool | None = False) -> None:
    """Reads all files of an index folder, and compares them with the checksums in its database.

    Searches and changes may run meanwhile. Nothing is repaired: build a damaged index again. `progress` shows a bar of
    the bytes read on stderr.

    Raises CheckpointError, which names the file, if there is no finished index, or a file is missing or damaged.
    """
    path = Path(folder).absolute()

    def check_whole(catalogue: Catalogue) -> list[File]:
        State(path, catalogue, IndexModel(None))
        if damage := catalogue.check():
            raise CheckpointError(f"{path / DATABASE}: damaged ({damage}); build the index again")
        return catalogue.list_files()

    def check(file: File, catalogue: Catalogue) -> None:
        if file in catalogue.list_files() and not _is_whole(path, file):
            raise CheckpointError(f"{path / file.name}: damaged, its checksum has changed; build the index again")

    with closing(Database(path)) as database:
        files = database.read(check_whole)
        total = sum(file.bytes for file in files)
        with create_progress(step="checking", total=total, unit="B", show=progress) as bar:
            for file in files:
                if not _is_whole(path, file, progress=bar.update):  # perhaps just removed by a change
                    database.read(partial(check, file))


def _is_whole(folder: Path, file: File, *, progress: Callable[[int], object] = int) -> bool:
    try:
        return compute_checksum(folder / file.name, progress=progress) == file.checksum
    except OSError:
        return False
