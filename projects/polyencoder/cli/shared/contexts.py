"""The contexts that commands read: a text a line, or records that hold the turns of a dialogue."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from polyencoder.data.texts import read_records
from polyencoder.errors import InputError
from polyencoder.text.dialogue import checked_context

__all__ = ["Question", "in_batches", "read_questions"]

T = TypeVar("T")
COLUMNS = ("context", "messages", "text")
"""Where records have their context."""


class Question(NamedTuple):
    """A context to answer."""

    turns: list[str]
    id: Any = None
    """The `id` of its record."""


def read_questions(paths: Iterable[str]) -> Iterator[Question]:
    """The contexts of files, one at a time; `-` is standard input.

    Records have `context` (or `messages` or `text`): a text, a list of turns or the messages of a chat. In a file of
    lines each is a context of one turn, but one that begins with `{` is such a record; empty lines are left out.

    Raises InputError for a file that cannot be read and a record without a context, with its line.
    """
    for path in paths:
        for where, record in read_records(path):
            yield Question(_turns(record, where=where), record.get("id"))


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last perhaps shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, min(size, sys.maxsize))):
        yield batch


def _turns(record: dict[str, Any], *, where: str) -> list[str]:
    name = next((one for one in COLUMNS if one in record), None)
    if name is None:
        raise InputError(
            f"{where}: has none of {', '.join(map(repr, COLUMNS))}; it has {', '.join(map(repr, record)) or 'nothing'}"
        )
    return checked_context(f"{where}: {name!r}", record[name])
