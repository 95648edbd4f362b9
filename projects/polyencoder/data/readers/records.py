"""Reads the records of a file, in the format of its file name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polyencoder.checks import find_lone_surrogate
from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.delimited import iter_rows
from polyencoder.data.readers.json_array import holds_array, iter_json_array
from polyencoder.data.readers.lines import iter_lines
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, is_compressed, open_source
from polyencoder.errors import ConfigError, InputError, get_first_line
from polyencoder.packages import require

Record = dict[str, Any]
ROWS_AT_ONCE = 1024  # of a Parquet file
HEAD = 10  # lines of a text file: a title or empty lines may come before records
TABLES = ("csv", "tsv")
_RECORD_KEYS = {  # a record has one or more
    *("text", "context", "response", "messages", "conversations", "turns", "dialog", "sentences"),
    *("anchor", "query", "question", "prompt"),
}


def iter_records(
    source: Source, *, format: str | None = None, delimiter: str | None = None, bad: OnBad = raise_it
) -> Iterator[tuple[str, Record]]:
    """Yields the records of a file in order, each with its place: (`file.csv, line 12`, {name: value}).

    Formats: `jsonl` (an object a line, or one array of objects; `.jsonl`, `.ndjson` and `.json`), `csv` and `tsv`
    (with a header row), `parquet`, and `txt` (every other name: `{"text": line}`), also with `.gz`, `.bz2`, `.xz` or
    `.zst`. Empty lines are skipped, except in `txt`. A record in JSON among the first `HEAD` lines of a `txt` is an
    error.

    Args:
        source: a path (`-` is standard input) or an open `DataFile`.
        format: one of `FORMATS`; None: by the file's name.
        delimiter: what separates the columns of `csv` and `tsv`; None: what the first rows show.
        bad: gets the error of a record that cannot be used, and of a file that is damaged from some record on.

    Raises:
        ConfigError: an unknown format, or one whose package is not installed.
        InputError: a file that cannot be opened; and what `bad` raises.
    """
    name = format or detect_format(source)
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; use one of {', '.join(FORMATS)}")
    return FORMATS[name](source, bad=bad, **({"delimiter": delimiter} if delimiter and name in TABLES else {}))


def detect_format(source: Source) -> str:
    """The format of a file, by its name."""
    path = Path(source.path if isinstance(source, DataFile) else source)
    if is_compressed(path.name):
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix.lower(), "txt")


def _read_json(source: Source, *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    with open_source(source) as file:
        yield from iter_json_array(file, bad=bad) if holds_array(file) else _read_objects(file, bad=bad)


def _read_objects(file: DataFile, *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    for number, line in iter_lines(file, bad=bad):
        if not line or line.isspace():
            continue
        where = f"{file.path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(InputError(f"{where}: not JSON ({get_first_line(error)})"))
            continue
        if not isinstance(record, dict):
            bad(InputError(f"{where}: not a JSON object, but {line:.60}"))
        elif "\\u" in line and (problem := find_lone_surrogate(record)):  # JSON writes half of a character as an escape
            bad(InputError(f"{where}: {problem}"))
        else:
            yield where, record


def _read_text(source: Source, *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    with open_source(source) as file:
        for number, line in iter_lines(file, bad=bad):
            where = f"{file.path}, line {number}"
            if number <= HEAD and is_record(line):
                raise InputError(
                    f"{where}: is JSON with {', '.join(map(repr, json.loads(line)))}, but is read as a text: give JSON "
                    "lines in a file whose name ends in .jsonl"
                )
            yield where, {"text": line}


def is_record(line: str) -> bool:
    """Whether a line is a JSON object as files of records have them."""
    try:
        return line.startswith("{") and not _RECORD_KEYS.isdisjoint(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _read_parquet(source: Source, *, bad: OnBad) -> Iterator[tuple[str, Record]]:
    """Yields the rows of a Parquet file, read in small batches; the first is row 1."""
    parquet = require("pyarrow.parquet", extra="data")
    damage = (require("pyarrow", extra="data").ArrowException, OSError)
    row = 0
    with open_source(source) as file:
        path = file.path
        if is_compressed(path) or not os.path.isfile(path):  # it is read from its end
            raise InputError(f"{path}: Parquet must be an ordinary file, neither compressed as a whole nor a pipe")
        try:
            with parquet.ParquetFile(path) as table:
                for batch in table.iter_batches(ROWS_AT_ONCE):
                    for record in batch.to_pylist():
                        row += 1
                        file.fraction = row / table.metadata.num_rows
                        yield f"{path}, row {row}", record
        except damage as error:
            bad(DamagedFile(f"{path}, after row {row}: not a Parquet file, or damaged ({get_first_line(error)})"))


FORMATS: dict[str, Callable[..., Iterator[tuple[str, Record]]]] = {
    "jsonl": _read_json,
    "csv": iter_rows,
    "tsv": partial(iter_rows, usual="\t"),
    "parquet": _read_parquet,
    "txt": _read_text,
}
SUFFIXES = {".ndjson": "jsonl", ".json": "jsonl"} | {f".{name}": name for name in FORMATS}
