"""Candidates as rows of a database server: keys, the rows that a change writes, and the vectors of new texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np

from polyencoder.errors import InputError
from polyencoder.index.base import Candidate, How
from polyencoder.index.entries import canonical, checked, taken
from polyencoder.index.given import checked_vector, same_vector
from polyencoder.index.meta import separable
from polyencoder.index.vectors import quantize
from polyencoder.ranker.encoding import encode_candidates
from polyencoder.ranker.protocol import TextRanker

ROWS_AT_ONCE = 4096
"""Candidates per step of comparing, encoding and writing."""


class Entry(NamedTuple):
    """A candidate as stored in a row."""

    id: str
    text: str
    metadata: dict[str, Any]


def entry_of(candidate: Candidate, *, engine: str, read: Callable[[str, str, str], dict[str, Any]]) -> Entry:
    """Converts a candidate. Raises InputError if an index, or the engine, cannot hold it.

    `read`: (id, text, metadata's JSON) -> the metadata to store; ValueError for what the engine cannot hold.
    """
    where = f"{candidate.where}: " if candidate.where else ""
    try:
        text, id_, metadata = checked(candidate)
        return Entry(id_, text, read(id_, text, metadata or "{}"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}not a candidate that {engine} can hold: {error}") from None


def key_of(id_: str) -> str:
    """The primary key of a candidate: of fixed length, with characters that need no quoting."""
    return hashlib.blake2b(id_.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def to_write(
    new: Iterable[tuple[Candidate, Entry]],
    there: MutableMapping[str, Entry],
    stored: Mapping[str, np.ndarray[Any, Any]],
    *,
    dim: int,
    how: How,
    where: str,
) -> Iterator[tuple[Candidate, Entry]]:
    """The candidates that differ from the existing ones in text, metadata or given vector.

    Args:
        new: the candidates with their entries.
        there: the existing entries by their ids; updated here.
        stored: the existing vectors, float32 [dim], of candidates with a given one, by row key.
        dim: the vectors' dimension.

    Raises:
        InputError: the id of a new candidate is taken, one to update does not exist, or a vector is invalid.
    """
    vectors = dict(stored)
    for record, entry in new:
        key = key_of(entry.id)
        vector = None if record.vector is None else checked_vector(record, dim=dim).vector
        if (old := there.get(entry.id)) is None:
            if how == "update":
                raise missing(entry.id, where=where)
        else:
            has_vector = vector is None or (key in vectors and same_vector(vectors[key], vector))
            if old.text != entry.text:
                other = "text"
            elif canonical(old.metadata) != canonical(entry.metadata):
                other = "metadata"
            elif not has_vector:
                other = "values in its vector"
            else:
                continue
            if how == "add":
                raise InputError(taken(record, entry.id, old.text, whose="another candidate", other=other))
        there[entry.id] = entry
        if vector is not None:
            vectors[key] = vector
        yield record, entry


def brought(new: Iterable[tuple[Candidate, Entry]], *, dim: int) -> dict[str, np.ndarray[Any, Any]]:
    """The given vectors of candidates, float32 [dim], by row key. InputError for an invalid one.

    Of several candidates with one id the last counts, with or without a vector.
    """
    given: dict[str, np.ndarray[Any, Any] | None] = {}
    for record, entry in new:
        given[key_of(entry.id)] = None if record.vector is None else checked_vector(record, dim=dim).vector
    return {key: vector for key, vector in given.items() if vector is not None}


def missing(id_: str, *, where: str) -> InputError:
    """The error for an unknown id."""
    return InputError(f"{where}: no candidate has the id {id_!r}")


def encoded(texts: list[str], ranker: TextRanker | None, *, where: str) -> np.ndarray[Any, Any]:
    """Encodes texts to float32 [n, dim]. InputError without a model, or for numbers that are not finite."""
    if ranker is None:
        raise InputError(f"{where}: was opened without its model, which encodes new texts; open it with a Ranker")
    vectors = encode_candidates(separable(ranker), ranker.text, texts, remember=False)
    return quantize(vectors, "float32", texts=texts)[0].numpy()
