"""Reads plain texts from files of any format, to train vocabularies on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from polyencoder.checks import find_lone_surrogate
from polyencoder.data.readers import detect_format, iter_lines, iter_records, open_bytes
from polyencoder.errors import InputError

TEXT_COLUMNS = ("text", "turns", "context", "response")
"""Default columns with texts or lists of texts."""


def read_texts(files: Iterable[str], *, columns: Sequence[str] = ()) -> Iterator[str]:
    """Yields the texts of files: lines of text files, and the texts of records in `columns`, else `TEXT_COLUMNS`.

    Line ends within a text end it; empty texts are left out.

    Raises:
        InputError: a file that cannot be read; a record that has none of the columns, or anything but texts in
            one.
    """
    for file in files:
        for where, record in iter_records(file):
            yield from _read_texts(record, columns, where=where)


def read_records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of a file with their places; a line of a text file that begins with `{` is JSON.

    Empty lines are left out. Raises InputError for a file that cannot be read, and a line that is no JSON object.
    """
    if detect_format(path) != "txt":
        yield from iter_records(path)
        return
    with open_bytes(path) as file:
        for number, line in iter_lines(file):
            if line.strip():
                where = f"{file.path}, line {number}"
                yield where, _read_line(line, where=where)


def _read_line(line: str, *, where: str) -> dict[str, Any]:
    if not line.lstrip().startswith("{"):
        return {"text": line}
    try:
        record = dict(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: begins with {{ but is not a JSON object ({error})") from None
    if problem := find_lone_surrogate(record):
        raise InputError(f"{where}: {problem}")
    return record


def sample_uniformly(items: Iterable[str], *, count: int, of: int, seed: int = 0) -> Iterator[str]:
    """Samples `count` of the `of` items uniformly, in order; all, if there are no more.

    Selection sampling, algorithm S of Knuth, "The Art of Computer Programming", volume 2, section 3.4.2.
    """
    rng = random.Random(seed)
    needed, left = min(count, of), of
    for item in items:
        if needed == 0:
            return
        if rng.random() * left < needed:
            needed -= 1
            yield item
        left -= 1


def _read_texts(record: dict[str, Any], columns: Sequence[str], *, where: str) -> Iterator[str]:
    present = [name for name in columns or TEXT_COLUMNS if name in record]
    if not present or len(present) < len(columns):
        missing = next((name for name in columns if name not in record), None)
        problem = f"no {missing!r}" if missing else f"none of {', '.join(map(repr, TEXT_COLUMNS))}"
        raise InputError(
            f"{where}: has {problem}; it has {', '.join(map(repr, record)) or 'nothing'}. Name the columns with texts",
            argument="columns",
        )
    for name in present:
        value = record[name]
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise InputError(f"{where}: {name!r} is neither a text nor a list of texts, but {type(value).__name__}")
        for text in values:
            yield from (line for line in text.split("\n") if line.strip())
