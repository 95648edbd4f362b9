"""`RowIndex`: an index whose candidates are rows in a database, and what a change writes of them."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.encoding.protocol import TextRanker
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate, WriteMode, build_duplicate_id_error, check_candidate, format_metadata
from polyencoder.index.filters import Filter
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.index.model import IndexModel
from polyencoder.index.options import SearchOptions
from polyencoder.index.precomputed import check_vector, is_same_vector
from polyencoder.index.row_search import Field, Rows, search_rows
from polyencoder.index.values import Kind
from polyencoder.index.vectors import quantize
from polyencoder.search.contexts import Array, Contexts, check_finite

ROWS_AT_ONCE = 4096
"""Candidates per step of comparing, encoding and writing."""

T = TypeVar("T")


class Entry(NamedTuple):
    """A candidate as stored in a row."""

    id: str
    text: str
    metadata: dict[str, Any]


class Row(NamedTuple):
    """A row of an index, or to write: with a vector, with the stored vector, or with a text to encode."""

    entry: Entry
    vector: Array | None = None
    """float32 [dim], if the candidate brought it in this change."""
    is_stored: bool = False
    """Whether the vector is the one that is stored."""


class RowIndex(Index):
    """An index whose candidates are rows in a database: key, id, text, metadata, its terms, norm and vector."""

    takes_vectors = True
    engine: ClassVar[str]
    """The engine's name, for messages."""
    takes_effort = False
    """Whether its searches have an effort."""

    def __init__(self, database: Any, meta: Maker, ranker: TextRanker | Fingerprints | None) -> None:
        """Opens an index that this model, if any, has made: `meta` was checked. The index closes `database`."""
        self.meta = meta
        self._database = database
        self._model = IndexModel(ranker, opened_with=meta.fingerprints)
        self._ranker = self._model.ranker
        self._lock = threading.RLock()

    @classmethod
    def open(cls, where: str, ranker: TextRanker | Fingerprints | None = None) -> Self:
        """Opens an index for the model that made it, as `polyencoder.index.open.open_index`."""
        with ExitStack() as failed:
            database, meta = cls._open_database(where, failed)
            meta.check_model(ranker, where=database.where)
            index = cls(database, meta, ranker)
            failed.pop_all()
        return index

    @classmethod
    @abstractmethod
    def _open_database(cls, where: str, stack: ExitStack) -> tuple[Any, Maker]:
        """The database at an address, which `stack` closes, and its index's description. CheckpointError if none."""

    def close(self) -> None:
        self._database.close()

    @property
    def address(self) -> str:
        return str(self._database.where)

    def summarize(self) -> list[str]:
        """A summary, in lines."""
        lines = self.meta.summarize(self.address, entries=len(self), vectors=f"of {self.meta.dim} numbers, float32")
        return [
            *lines,
            *(["words: of all texts, for hybrid searches"] if self.has_words else []),
            self._describe_kind(),
        ]

    @abstractmethod
    def _describe_kind(self) -> str:
        """The line about how it is searched."""

    @property
    def remote(self) -> bool:
        return True

    # Reading

    @abstractmethod
    def _read(self, ask: Callable[[Rows], T]) -> T:
        """Calls `ask` with the newest rows. CheckpointError if they are gone, or of another model by now."""

    def count(self, filter: Filter | None = None) -> int:
        return self._read(lambda rows: rows.count(filter))

    def count_texts(self, filter: Filter | None = None) -> int:
        return self._read(lambda rows: rows.count_texts(filter))

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        return self._read(lambda rows: rows.has_field(key, kinds))

    def check_searchable(self) -> None:
        self._read(lambda rows: rows.count(limit=1))

    def get_texts(self, ids: Iterable[str]) -> dict[str, str]:
        keys = [*map(hash_id, ids)]  # `_read` may ask twice
        rows = self._read(lambda table: table.fetch_rows(keys, ("id", "text")))
        return {row["id"]: row["text"] for row in rows.values()}

    def get_vectors(self, ids: Iterable[str]) -> dict[str, Array]:
        keys = {hash_id(id_): id_ for id_ in ids}
        rows = self._read(lambda table: table.fetch_rows(keys, ("vector",)))
        return {keys[key]: row["vector"] for key, row in rows.items()}

    def _search(self, contexts: Contexts, options: SearchOptions) -> list[list[Hit]]:
        def find(rows: Rows) -> list[list[Hit]]:
            check_finite(contexts, dim=self.meta.dim)
            attention = self._model.get_attention(self.meta, contexts)
            return search_rows(rows, contexts, options, attention=attention)

        return self._read(find)

    def check(self, options: SearchOptions) -> None:
        super().check(options)
        if options.effort is not None and not self.takes_effort:
            raise ConfigError(
                "effort is for FAISS, and for hnsw and ivf-flat in PostgreSQL; give list_length",
                argument="effort",
                where=self.address,
            )

    # Changing

    def _enter(self, records: Iterable[Candidate], how: WriteMode) -> int:
        """See `Index.add`, `update` and `put`. Of some thousand records, equal texts are encoded once."""

        def enter_batch(batch: list[Candidate]) -> int:
            new = [(record, self._make_entry(record)) for record in batch]
            existing = self._find_existing(entry.id for _, entry in new)
            precomputed = {entry.id for record, entry in new if record.vector is not None}
            stored = self._fetch_stored(existing[id_] for id_ in precomputed & existing.keys())
            rows = list(select_changed(new, existing, stored, dim=self.meta.dim, how=how, where=self.address))
            self._write({hash_id(row.entry.id): row for row in rows})
            return len(rows)

        return self._run_steps(records, enter_batch)

    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> int:
        def remove_batch(batch: list[str]) -> int:
            existing = self._find_existing(batch)
            keys = [hash_id(id_) for id_ in existing]
            for id_ in batch:
                if existing.pop(id_, None) is None and not missing_ok:
                    raise build_unknown_id_error(id_, where=self.address)
            self._delete(keys)
            return len(keys)

        return self._run_steps(ids, remove_batch)

    def _fetch_stored(self, rows: Iterable[Row]) -> dict[str, Array]:
        """The stored vectors of rows that reuse them, unless another process has changed the text."""
        texts = {hash_id(row.entry.id): row.entry.text for row in rows if row.is_stored}
        stored = self._fetch_rows(texts, ("text", "vector")) if texts else {}
        return {key: row["vector"] for key, row in stored.items() if row["text"] == texts[key]}

    def _fetch_vectors(self, rows: Mapping[str, Row]) -> dict[str, Array]:
        """The vectors of rows to write: given, stored, or encoded here, each text once. Errors as in `encode_texts`."""
        vectors = self._fetch_stored(rows.values())
        vectors |= {key: row.vector for key, row in rows.items() if row.vector is not None}
        if unencoded := {key: row.entry.text for key, row in rows.items() if key not in vectors}:
            texts = [*dict.fromkeys(unencoded.values())]
            by_text = dict(zip(texts, encode_texts(texts, self._ranker, where=self.address), strict=True))
            vectors |= {key: by_text[text] for key, text in unencoded.items()}
        return vectors

    @abstractmethod
    def _run_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        """Calls `step` with `ROWS_AT_ONCE` items at a time, as changes; returns the sum of its results."""

    @classmethod
    def _make_entry(cls, candidate: Candidate) -> Entry:
        """Converts a candidate. Raises InputError if an index, or the engine, cannot hold it."""
        where = f"{candidate.where}: " if candidate.where else ""
        try:
            text, id_, metadata = check_candidate(candidate)
            entry = Entry(id_, text, json.loads(metadata or "{}"))
            cls._check_entry(entry, metadata or "{}")
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}not a candidate that {cls.engine} can hold: {error}") from None
        return entry

    @staticmethod
    @abstractmethod
    def _check_entry(entry: Entry, metadata: str) -> None:
        """Raises ValueError for what the engine cannot hold; `metadata` is the entry's JSON."""

    def _find_existing(self, ids: Iterable[str]) -> dict[str, Row]:
        """The existing candidates of these ids, by id, including the changes of the block of `changing`."""
        rows = self._fetch_rows(map(hash_id, ids), ("id", "text", "metadata")).values()
        entries = (Entry(row["id"], row["text"], row["metadata"]) for row in rows)
        return {entry.id: Row(entry, is_stored=True) for entry in entries}

    @abstractmethod
    def _fetch_rows(self, keys: Iterable[str], fields: Sequence[Field]) -> dict[str, dict[str, Any]]:
        """`Rows.fetch_rows`, in a block of `changing`."""

    @abstractmethod
    def _write(self, rows: Mapping[str, Row]) -> None:
        """Writes rows by their keys, new ones or in place of existing ones."""

    @abstractmethod
    def _delete(self, keys: list[str]) -> None: ...


def hash_id(id_: str) -> str:
    """The primary key of a candidate: of fixed length, with characters that need no quoting."""
    return hashlib.blake2b(id_.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def round_norm_up(vector: Array) -> float:
    """The norm of a vector, rounded up to float32."""
    return float(np.nextafter(np.float32(np.linalg.norm(vector.astype(np.float64))), np.float32(np.inf)))


def select_changed(
    new: Iterable[tuple[Candidate, Entry]],
    existing: MutableMapping[str, Row],
    stored: Mapping[str, Array],
    *,
    dim: int,
    how: WriteMode,
    where: str,
) -> Iterator[Row]:
    """The candidates that differ from the existing ones in text, metadata or given vector.

    Updates `existing`, the rows by id. `stored` has the stored vectors, by row key, of candidates that bring one. Any
    difference is a change, but for the rounding of a vector that is added again.
    InputError for an id to add that exists, an id to update that does not, and an invalid vector.
    """
    is_same = is_same_vector if how == "add" else np.array_equal
    for record, entry in new:
        vector = None if record.vector is None else check_vector(record, dim=dim).vector
        row = Row(entry, vector)
        if (old := existing.get(entry.id)) is None:
            if how == "update":
                raise build_unknown_id_error(entry.id, where=f"{record.where}: {where}" if record.where else where)
        else:
            stored_vector = stored.get(hash_id(entry.id)) if old.is_stored else old.vector
            if old.entry.text != entry.text:
                other = "text"
            elif format_metadata(old.entry.metadata) != format_metadata(entry.metadata):
                other = "metadata"
            elif vector is not None and (stored_vector is None or not is_same(stored_vector, vector)):
                other = "values in its vector"
            else:
                continue
            if how == "add":
                raise build_duplicate_id_error(record, entry.id, old.entry.text, other=other)
            if vector is None and other != "text":
                row = old._replace(entry=entry)
        existing[entry.id] = row
        yield row


def build_unknown_id_error(id_: str, *, where: str) -> InputError:
    """The error for an unknown id."""
    return InputError(f"no candidate has the id {id_!r}", where=where)


def encode_texts(texts: list[str], ranker: TextRanker | None, *, where: str) -> Array:
    """Encodes texts to float32 [n, dim]. InputError without a model, or for numbers that are not finite."""
    if ranker is None:
        raise InputError("was opened without its model, which encodes new texts; open it with a Ranker", where=where)
    vectors = ranker.encoder.encode_candidates(tokenize_candidates(ranker.text, texts, remember=False))
    return quantize(vectors, "float32", texts=texts)[0]
