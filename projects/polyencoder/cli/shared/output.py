"""Output of commands: lines on standard output and standard error, and progress bars."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from polyencoder.errors import ConfigError

ProgressBars = Annotated[
    bool | None, Parameter(help="Show progress on standard error: a bar, or lines where that is no terminal.")
]
"""The setting `progress`, as in `create_progress`."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line end


def say(line: str, *, err: bool = False) -> None:
    """Writes and flushes a line, with `err` to standard error; control characters are escaped, as in JSON."""
    line = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", line)
    print(line, file=sys.stderr if err else sys.stdout, flush=True)


def check_json_lines(out: str | os.PathLike[str]) -> None:
    """Raises ConfigError if a file of JSON lines has another ending, by which commands would read it."""
    if (path := Path(out)).suffix.lower() not in (".jsonl", ".ndjson", ".json"):
        raise ConfigError(f"{path}: JSON lines are written; give the file the ending .jsonl", argument="out")


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for JSON, without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def join_white_space(text: str) -> str:
    """The text with single spaces for all white space."""
    return " ".join(text.split())


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows of as many cells each, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
