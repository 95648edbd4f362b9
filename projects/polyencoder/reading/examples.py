"""Pairs of a context and its response, to learn from, and with candidates, to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from polyencoder.errors import InputError
from polyencoder.reading.records import records

Example = tuple[Sequence[str] | str, str, Sequence[str]]
"""A context (its turns, or one text), its label, and the candidates, of which the label is one."""


class Pair(NamedTuple):
    """A context, its turns as lines of one text, and the response to it."""

    context: str
    response: str
    record: dict[str, Any]
    """All that the file has of it."""


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """The pairs of a file, one at a time: each with a context, a text or a list of turns, and a response.

    Raises InputError, with file and line, for a record that has not these, or has them empty.
    """
    for where, record in records(path):
        context, response = record.get("context"), record.get("response")
        turns = [context] if isinstance(context, str) else context
        if not _are_texts(turns) or not "".join(turns).strip():
            raise InputError(f"{where}: `context` is {context!r:.60}; it must be a text or a list of turns, not empty")
        if not isinstance(response, str) or not response.strip():
            raise InputError(f"{where}: `response` is {response!r:.60}; it must be a text, not empty")
        yield Pair("\n".join(turn.strip() for turn in turns if turn.strip()), response.strip(), record)


def read_examples(path: Path, *, with_candidates: bool = True) -> list[Example]:
    """The examples of a file: a context (a text or a list of turns), its response and the candidates.

    The response becomes a candidate where it is none; without candidates it is the only one. Raises InputError, with
    file and line, for a record that has not these, and for a file without a record.
    """
    columns = ["context", "response", *(["candidates"] if with_candidates else [])]
    examples = [_example(record, where=where) for where, record in records(path, columns=columns)]
    if not examples:
        raise InputError(f"{path}: no example in it")
    return examples


def _example(record: dict[str, Any], *, where: str) -> Example:
    context, response, candidates = (
        record["context"],
        record["response"],
        record.get("candidates", [record["response"]]),
    )
    if not isinstance(context, str) and not _are_texts(context):
        raise InputError(f"{where}: `context` is {context!r:.60}; it must be a text or a list of turns")
    if not isinstance(response, str):
        raise InputError(f"{where}: `response` is {response!r:.60}; it must be a text")
    if not _are_texts(candidates):
        raise InputError(f"{where}: `candidates` is {candidates!r:.60}; it must be a list of texts")
    return context, response, candidates if response in candidates else [response, *candidates]


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
