"""Candidates as rows of a database server: their keys, which of them a change writes, and the vectors of new texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

from polyencoder.errors import InputError
from polyencoder.index.base import Candidate, How
from polyencoder.index.entries import canonical, taken
from polyencoder.index.given import checked_vector
from polyencoder.index.meta import separable
from polyencoder.index.vectors import quantize
from polyencoder.ranker.encoding import encode_candidates
from polyencoder.ranker.protocol import TextRanker

__all__ = ["ROWS_AT_ONCE", "Entry", "batches", "brought", "encoded", "key_of", "missing", "to_write"]

ROWS_AT_ONCE = 4096
"""Candidates that are compared, encoded and written in one step."""

T = TypeVar("T")


class Entry(Protocol):
    """A candidate as a row has it."""

    @property
    def id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


E = TypeVar("E", bound=Entry)


def key_of(id_: str) -> str:
    """The primary key of a candidate, of one length however long its id, and of characters that need no quoting."""
    return hashlib.blake2b(id_.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` in each list."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some


def to_write(
    new: Iterable[tuple[Candidate, E]], there: MutableMapping[str, E], *, how: How, where: str
) -> Iterator[tuple[Candidate, E]]:
    """The candidates whose entries differ from those that are `there`, by their ids, which is kept up to date.

    Raises InputError for one that cannot be added, since its id is taken, or updated, since it is not there.
    """
    for record, entry in new:
        if (old := there.get(entry.id)) is None:
            if how == "update":
                raise missing(entry.id, where=where)
        elif old.text == entry.text and canonical(old.metadata) == canonical(entry.metadata):
            continue
        elif how == "add":
            other = "text" if old.text != entry.text else "metadata"
            raise InputError(taken(record, entry.id, old.text, whose="another candidate", other=other))
        there[entry.id] = entry
        yield record, entry


def brought(new: Iterable[tuple[Candidate, E]], *, dim: int) -> dict[str, np.ndarray[Any, Any]]:
    """The vectors that candidates bring, float32 [dim], by the keys of their rows. InputError for one that is none.

    Of several candidates with one id the last counts, with its vector or without.
    """
    given: dict[str, np.ndarray[Any, Any] | None] = {}
    for record, entry in new:
        given[key_of(entry.id)] = None if record.vector is None else checked_vector(record, dim=dim).vector
    return {key: vector for key, vector in given.items() if vector is not None}


def missing(id_: str, *, where: str) -> InputError:
    """The error for an id that is not there."""
    return InputError(f"{where}: no candidate has the id {id_!r}")


def encoded(texts: list[str], ranker: TextRanker | None, *, where: str) -> np.ndarray[Any, Any]:
    """The vectors of texts, float32 [n, dim]. InputError without a model, and for numbers that are not finite."""
    if ranker is None:
        raise InputError(f"{where}: was opened without its model, which new texts need; open it with a Ranker")
    vectors = encode_candidates(separable(ranker), ranker.text, texts, remember=False)
    return quantize(vectors, "float32", texts=texts)[0].numpy()
