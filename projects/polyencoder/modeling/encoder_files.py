"""Reads the files of an encoder, in its folder or on the hub."""

from __future__ import annotations

import json
import os
from typing import Any

from polyencoder.errors import ConfigError, first_line


def file_of(name: str | os.PathLike[str], file: str) -> str | None:
    """The path of a file of a folder or hub repository; None if missing or unreachable."""
    from transformers.utils.hub import cached_file

    path: str | None = cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return path


def json_of(name: str | os.PathLike[str], file: str, kind: type) -> Any:
    """Reads a JSON file of a folder or hub repository; None if missing or unreachable."""
    path = file_of(name, file)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as opened:
            value = json.load(opened)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {file} cannot be read ({first_line(error)})") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: {file} holds a {type(value).__name__}, not a {kind.__name__}")
    return value
