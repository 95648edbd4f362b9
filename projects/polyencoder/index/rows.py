"""`RowIndex`: an index whose candidates are rows of a database server, and what a change writes of them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate, How, canonical, checked, taken
from polyencoder.index.given import checked_vector, same_vector
from polyencoder.index.meta import Fingerprints, Maker, encoder_of, separable
from polyencoder.index.vectors import quantize
from polyencoder.ranker.encoding import encode_candidates
from polyencoder.ranker.protocol import TextRanker
from polyencoder.scoring.exact import attention_scale

ROWS_AT_ONCE = 4096
"""Candidates per step of comparing, encoding and writing."""

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Entry(NamedTuple):
    """A candidate as stored in a row."""

    id: str
    text: str
    metadata: dict[str, Any]


class Row(NamedTuple):
    """A row to write."""

    entry: Entry
    vector: Array | None
    """float32 [dim], if the candidate brought it."""
    keeps: bool = True
    """Whether the vector that is stored remains, if the text does. Not where the stored row is deleted or replaced."""


class RowIndex(Index):
    """An index whose candidates are rows of a database server: key, id, text, metadata and vector."""

    takes_vectors = True

    def __init__(self, meta: Maker, ranker: TextRanker | Fingerprints | None, *, attention: str) -> None:
        self.meta = meta
        self._ranker, self.attention = encoder_of(ranker, attention=attention)
        attention_scale(self.attention, dim=meta.dim)  # raises for an unknown one

    @property
    def fingerprints(self) -> Fingerprints:
        return self.meta.fingerprints

    def _enter(self, records: Iterable[Candidate], how: How) -> int:
        """As in `Index.add`, `update` and `put`. Of some thousand records, equal texts are encoded once."""

        def step(some: list[Candidate]) -> int:
            new = [(record, self._entry(record)) for record in some]
            there = self._there(entry.id for _, entry in new)
            stored = self._stored(key_of(entry.id) for record, entry in new if record.vector is not None)
            rows = list(to_write(new, there, stored, dim=self.meta.dim, how=how, where=self.address))
            self._write({key_of(row.entry.id): row for row in rows})
            return len(rows)

        return self._in_steps(records, step)

    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> int:
        def step(some: list[str]) -> int:
            there = self._there(some)
            gone = [key_of(id_) for id_ in there]
            for id_ in some:
                if there.pop(id_, None) is None and not missing_ok:
                    raise missing(id_, where=self.address)
            self._delete(gone)
            return len(gone)

        return self._in_steps(ids, step)

    @abstractmethod
    def _in_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        """Calls `step` with `ROWS_AT_ONCE` items at a time, as changes; returns the sum of its results."""

    @abstractmethod
    def _entry(self, candidate: Candidate) -> Entry:
        """Converts a candidate. Raises InputError if an index, or the engine, cannot hold it."""

    @abstractmethod
    def _there(self, ids: Iterable[str]) -> dict[str, Entry]:
        """The existing candidates of these ids, by id, including the changes of the block of `changing`."""

    @abstractmethod
    def _stored(self, keys: Iterable[str]) -> dict[str, Array]:
        """The existing vectors of these rows, float32 [dim]."""

    @abstractmethod
    def _write(self, rows: Mapping[str, Row]) -> None:
        """Writes rows by their keys, new ones or in place of existing ones."""

    @abstractmethod
    def _delete(self, keys: list[str]) -> None: ...


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
    stored: Mapping[str, Array],
    *,
    dim: int,
    how: How,
    where: str,
) -> Iterator[Row]:
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
        yield Row(entry, vector)


def missing(id_: str, *, where: str) -> InputError:
    """The error for an unknown id."""
    return InputError(f"{where}: no candidate has the id {id_!r}")


def vectors_to_write(
    rows: Mapping[str, Row], old: Mapping[str, tuple[str, Array]], ranker: TextRanker | None, *, where: str
) -> dict[str, Array]:
    """The vector of each row, by key: given, kept with an unchanged text, of an equal old text, or encoded here.

    `old` has the texts and vectors of the existing ones of these rows. Errors are those of `encoded`.
    """
    # a row with an unchanged text keeps its vector, which may be a given one
    known = {key: vector for key, (text, vector) in old.items() if text == rows[key].entry.text}
    known |= {key: row.vector for key, row in rows.items() if row.vector is not None}
    of_texts = dict(old.values())
    wanted = dict.fromkeys(row.entry.text for key, row in rows.items() if key not in known)
    if texts := [text for text in wanted if text not in of_texts]:
        of_texts |= zip(texts, encoded(texts, ranker, where=where), strict=True)
    return {key: known[key] if key in known else of_texts[row.entry.text] for key, row in rows.items()}


def encoded(texts: list[str], ranker: TextRanker | None, *, where: str) -> Array:
    """Encodes texts to float32 [n, dim]. InputError without a model, or for numbers that are not finite."""
    if ranker is None:
        raise InputError(f"{where}: was opened without its model, which encodes new texts; open it with a Ranker")
    vectors = encode_candidates(separable(ranker), ranker.text, texts, remember=False)
    return quantize(vectors, "float32", texts=texts)[0].numpy()
