"""Records of any file that users have: its name says which format it is in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyencoder.checks import half_characters
from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.delimited import rows
from polyencoder.data.readers.json_array import holds_array, json_array
from polyencoder.data.readers.lines import lines
from polyencoder.data.readers.parquet import parquet_rows
from polyencoder.data.readers.sources import DataFile, Source, is_compressed, opened
from polyencoder.errors import ConfigError, InputError, first_line

__all__ = ["FORMATS", "format_of", "records"]

Record = dict[str, Any]


def records(
    source: Source, *, columns: Sequence[str] | None = None, format: str | None = None, bad: OnBad = raise_it
) -> Iterator[tuple[str, Record]]:
    """The records of a file in order, each with its place: (`file.csv, line 12`, {name: value}).

    Formats: `jsonl` (an object a line, or one array of objects; `.jsonl`, `.ndjson` and `.json`), `csv` and `tsv`
    (with a header row), `parquet`, and `txt` (every other name: `{"text": line}`), behind `.gz`, `.bz2`, `.xz` or
    `.zst` too. Empty lines are left out, except of `txt`.

    Args:
        source: a path (`-` is standard input) or an open `DataFile`.
        columns: the names that are wanted; None: all that a record has.
        format: one of `FORMATS`; None: what the file's name says.
        bad: gets the error of a record that cannot be used, and of a file that is damaged from some record on.

    Raises:
        ConfigError: an unknown format, or one whose package is not installed.
        InputError: a file that cannot be opened, or a table without one of `columns`; and what `bad` raises.
    """
    name = format or format_of(source)
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; use one of {', '.join(FORMATS)}")
    return FORMATS[name](source, columns=columns, bad=bad)


def format_of(source: Source) -> str:
    """The format that a file's name stands for."""
    path = Path(source.path if isinstance(source, DataFile) else source)
    if is_compressed(path.name):
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix.lower(), "txt")


def _json_lines(source: Source, *, columns: Sequence[str] | None, bad: OnBad) -> Iterator[tuple[str, Record]]:
    with opened(source) as file:
        found = json_array(file, bad=bad) if holds_array(file) else _objects(file, bad=bad)
        yield from found if columns is None else _select(found, columns, bad=bad)


def _objects(file: DataFile, *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    """The object of each line that is not empty."""
    for number, line in lines(file, bad=bad):
        if not line or line.isspace():
            continue
        where = f"{file.path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(InputError(f"{where}: not JSON ({first_line(error)})"))
            continue
        if not isinstance(record, dict):
            bad(InputError(f"{where}: not a JSON object, but {line:.60}"))
        elif "\\u" in line and (problem := half_characters(record)):  # JSON writes half of a character as an escape
            bad(InputError(f"{where}: {problem}"))
        else:
            yield where, record


def _text(source: Source, *, columns: Sequence[str] | None, bad: OnBad) -> Iterator[tuple[str, Record]]:
    with opened(source) as file:
        found = ((f"{file.path}, line {number}", {"text": line}) for number, line in lines(file, bad=bad))
        yield from found if columns is None else _select(found, columns, bad=bad)


def _select(found: Iterator[tuple[str, Record]], columns: Sequence[str], *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    for where, record in found:
        missing = next((name for name in columns if name not in record), None)
        if missing is None:
            yield where, {name: record[name] for name in columns}
        else:
            bad(InputError(f"{where}: has no {missing!r}, but: {', '.join(record)}"))


FORMATS: dict[str, Callable[..., Iterator[tuple[str, Record]]]] = {
    "jsonl": _json_lines,
    "csv": rows,
    "tsv": partial(rows, delimiter="\t"),
    "parquet": parquet_rows,
    "txt": _text,
}
SUFFIXES = {".ndjson": "jsonl", ".json": "jsonl"} | {f".{name}": name for name in FORMATS}
