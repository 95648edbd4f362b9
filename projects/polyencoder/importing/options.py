"""Reads ParlAI's option files, `X.opt`, as JSON only, and checks the code that they name.

ParlAI unpickles an option file that is not UTF-8, which runs any code in it, and imports the modules that options
name. So `check_options` checks files from elsewhere before ParlAI reads them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polyencoder.errors import CheckpointError

TRUSTED = ("parlai", "polyencoder", "parlai_internal", "parlai_fb")
"""Packages that options may name: ParlAI, this project, and those that ParlAI always imports if they exist."""

_MODEL_KEYS, _TASK_KEYS = ("model",), ("task", "evaltask")
_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*")  # as ParlAI writes a class: `package.module:Class`
_REPOSITORIES = {"internal:": "parlai_internal", "fb:": "parlai_fb", "light:": "light"}  # in ParlAI's names


def read_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options of a `.opt` file. CheckpointError: the file does not exist, or is not a JSON object in UTF-8."""
    try:
        # decoded like ParlAI: the same bytes could be JSON in another encoding here and a pickle for ParlAI
        options = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{os.fspath(path)}: cannot be read ({error.strerror}); it holds the options of the model"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not valid JSON ({error}), so it was not read: ParlAI would take it for a pickle, "
            "which can run any code; give the file that ParlAI wrote, as JSON"
        ) from None
    if not isinstance(options, dict):
        raise CheckpointError(f"{os.fspath(path)}: not the options of a model, which are a JSON object")
    return options


def check_options(path: str | os.PathLike[str], *, named: Iterable[str] = ()) -> dict[str, Any]:
    """Reads a `.opt` file. CheckpointError: unreadable, or it names modules other than ParlAI's, ours, or `named`."""
    options = read_options(path)
    allowed = {_get_package(module) for module in (*TRUSTED, *named)}
    for key, value, module in iter_named_modules(options):
        if _get_package(module) not in allowed:
            can_override = key in (*_MODEL_KEYS, *_TASK_KEYS)
            trusting = f"name {value:.200} yourself" if can_override else "take it out of the file"
            raise CheckpointError(
                f"{os.fspath(path)}: its {key!r} is {value!r:.200}: code outside ParlAI and this project, which is not "
                f"imported because a file says so; if you trust it, {trusting}",
                argument=key if can_override else None,
            )
    return options


def iter_named_modules(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the modules that ParlAI may import for these options, with the key and the value that name each."""
    for key, value in options.items():
        if isinstance(value, dict):
            yield from iter_named_modules(value)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from ((key, text, module) for module in _iter_modules(key, text))


def find_model_option_files(model_file: str | os.PathLike[str]) -> list[Path]:
    """The `.opt` files that ParlAI may read for a model file: its own, and its checkpoint's, which a run resumes."""
    name = os.fspath(model_file)
    return [path for path in (Path(f"{name}.opt"), Path(f"{name}.checkpoint.opt")) if os.path.lexists(path)]


def _iter_modules(key: str, value: str) -> Iterator[str]:
    if key in _TASK_KEYS:
        for task in value.split(","):
            repository, name = _resolve_repository(task.strip())
            module = name.split(":")[0]
            yield module if "." in module else repository
    elif key in _MODEL_KEYS:
        repository, name = _resolve_repository(value)
        yield "projects" if name.startswith("projects:") else name.split(":")[0] if ":" in name else repository
    elif (match := _CLASS.fullmatch(value)) and ("." in match[1] or key.endswith("_class")):
        yield match[1]


def _get_package(module: str) -> str:
    return module.partition(".")[0]


def _resolve_repository(name: str) -> tuple[str, str]:
    for prefix, package in _REPOSITORIES.items():
        if name.startswith(prefix):
            return package, name[len(prefix) :]
    return "parlai", name
