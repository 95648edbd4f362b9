"""`polyencoder check FILE...`: whether ParlAI can be given a model that came from elsewhere."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from polyencoder.checkpoint import read_states
from polyencoder.errors import CheckpointError
from polyencoder.importing.options import check_options, model_option_files, named_modules

__all__ = ["check"]

_FILES = "Model files (FILE with FILE.opt beside it), or .opt files as for ParlAI's --init-opt."
_NAMED = "A module or package that the options may name because you trust its code; repeatable."


def check(
    files: Annotated[list[str], typer.Argument(help=_FILES)],
    trust: Annotated[list[str] | None, typer.Option(help=_NAMED)] = None,
) -> None:
    """Make sure that no code of their own runs when ParlAI reads these files: an error if one could.

    `parlai ... -mf FILE` reads FILE.opt before it knows whose model it is, takes what is not JSON for a pickle, and
    imports the agent that it names. This looks at FILE.opt and its checkpoint's first, and at the weights.
    """
    for file in files:
        if file.endswith(".opt"):
            check_options(file, named=trust or ())
            typer.echo(f"{file}: JSON, and names no code outside ParlAI and this project")
        else:
            _check_model(file, named=trust or [])


def _check_model(file: str, *, named: list[str]) -> None:
    options = model_option_files(file)
    if not options and not os.path.exists(file):
        raise CheckpointError(f"{file:.200}: no such model file, and no .opt beside it; give one that ParlAI wrote")
    model = ""
    for path in options:
        found = check_options(path, named=named)
        model = model or next((value for key, value, _ in named_modules(found) if key == "model"), "")
        typer.echo(f"{path}: JSON, and names no code outside ParlAI and this project")
    weights = [name for name in (file, f"{file}.checkpoint") if os.path.exists(name)]
    for name in weights if model != "tfidf" else []:  # whose weights are JSON
        read_states(name)
        typer.echo(f"{name}: weights, readable without running code")
