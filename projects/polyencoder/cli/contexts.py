"""The contexts that commands read: a text a line, or records that hold the turns of a dialogue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from polyencoder.checks import half_characters
from polyencoder.data.readers import records
from polyencoder.errors import InputError

__all__ = ["Question", "in_batches", "read_questions"]

T = TypeVar("T")


class Question(NamedTuple):
    """A context that wants an answer."""

    turns: list[str]
    id: Any = None
    """What its record had as `id`."""


def read_questions(paths: Iterable[str]) -> Iterator[Question]:
    """The contexts of files, one at a time; `-` is standard input.

    Records have `context` (or `text`), a text or a list of turns. In a file of lines each is a context of one turn,
    but one that begins with `{` is such a record in JSON; empty lines are left out.

    Raises InputError for a file that cannot be read and a record without a context, with its line.
    """
    for path in paths:
        for where, record in records(path):
            if record.keys() == {"text"} and isinstance(text := record["text"], str):
                if not text.strip():
                    continue
                if text.lstrip().startswith("{"):
                    record = _parsed(text, where=where)
            yield Question(_turns(record, where=where), record.get("id"))


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many items, the last perhaps shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, min(size, sys.maxsize))):
        yield batch


def _parsed(line: str, *, where: str) -> dict[str, Any]:
    try:
        record = dict(json.loads(line))
        if problem := half_characters(record):
            raise InputError(f"{where}: {problem}")
        return record
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: begins with {{ but is not a JSON object ({error})") from None


def _turns(record: dict[str, Any], *, where: str) -> list[str]:
    given = record.get("context", record.get("text"))
    turns = [given] if isinstance(given, str) else given
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns) or not "".join(turns).strip():
        raise InputError(f"{where}: `context` is {given!r:.60}; it must be a text or a list of turns, not empty")
    return turns
