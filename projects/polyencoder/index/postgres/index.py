"""`PostgresIndex`: an index in a table of a PostgreSQL database.

Exactness: *exact* if all rows were scored; *certified* by the lists of a "flat" table, if nothing outside them can be
better; *approximate* by the lists of "hnsw" or "ivf-flat". A search reads a snapshot, a change is a transaction, and
changes of several processes are serialized.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from polyencoder.data.loader import in_batches
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.base import check_contexts
from polyencoder.index.entries import Candidate
from polyencoder.index.filters import Filter
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints
from polyencoder.index.options import SearchOptions
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.meta import PostgresMeta, read_meta
from polyencoder.index.postgres.rows import postgres_entry
from polyencoder.index.postgres.search import by_vectors, by_words
from polyencoder.index.postgres.table import MOST_LISTS, Table, parse_kind
from polyencoder.index.rows import ROWS_AT_ONCE, Array, Entry, Row, RowIndex, key_of, vectors_to_write
from polyencoder.ranker.protocol import TextRanker
from polyencoder.scoring import ContextEncoding

T = TypeVar("T")


class PostgresIndex(RowIndex):
    """Candidates in a table. Any number of processes may search and change it."""

    meta: PostgresMeta
    word_scoring = "ts_rank"

    def __init__(
        self,
        server: Server,
        meta: PostgresMeta,
        ranker: TextRanker | Fingerprints | None,
        *,
        attention: str = "basic",
    ) -> None:
        super().__init__(meta, ranker, attention=attention)
        self._server = server
        self._mutex = threading.RLock()
        self._change: PostgresSession | None = None

    @classmethod
    def make(
        cls,
        where: str,
        records: Iterable[Candidate],
        ranker: TextRanker | Fingerprints,
        *,
        kind: str | None = None,
        words: bool = False,
        model_name: str = "",
        dim: int | None = None,
    ) -> PostgresIndex:
        """Creates an index of these candidates, or adds them to an existing index of this model.

        It is one transaction: an error or a kill changes nothing.

        Args:
            where: `postgres://USER@HOST:PORT/DATABASE#NAME`; the table is NAME, or `polyencoder`. Passwords are better
                in the environment, PGPASSWORD, or in ~/.pgpass.
            kind: "flat", whose searches read all vectors and whose results are exact or certified, "hnsw" or
                "ivf-flat", with parameters of pgvector as in "hnsw,m=16,ef_construction=128" or "ivf-flat,nlist=100".
                None for "flat", or the kind of the existing index.
            words: also index the texts' words, for searches by both. An existing index must have them.
            model_name: where the model was loaded from, for messages about the index.
            dim: the vectors' dimension, if candidates have vectors and `ranker` is their encoder's fingerprints.

        Raises:
            PolyencoderError: the server cannot be reached, or refuses.
            CheckpointError: the table exists and was made by another model or program.
            ConfigError: the kind is invalid, does not fit the vectors, or differs from the existing index's.
        """
        wanted = None if kind is None else parse_kind(kind)
        name, parameters = wanted or parse_kind("flat")
        meta = PostgresMeta.of(ranker, model_name=model_name, dim=dim, kind=name, parameters=parameters, words=words)
        server = Server(where)
        with server.changing() as session:
            table = Table(session, server.name, where=server.where)
            there = table.description()
            if there is not None:
                old = PostgresMeta.parsed(there, server.where)
                old.check_model(Fingerprints.of(ranker, known=old.fingerprints), where=server.where)
                if wanted is not None and old.kind != name:
                    raise ConfigError(
                        f"{server.where}: exists and is of the kind {old.kind}, not {name}; give another #NAME",
                        argument="postgres",
                    )
                for key, value in parameters.items():
                    if f"{key}=" in (kind or "") and value != old.parameters.get(key):
                        raise ConfigError(
                            f"{server.where}: exists, with {key}={old.parameters.get(key)}, not {value}; leave "
                            f"{key} out, or give another #NAME",
                            argument="postgres",
                        )
                if words and not old.words:
                    raise ConfigError(f"{server.where}: exists, without words; give another #NAME", argument="words")
                meta = old
            else:
                table.create(dim=meta.dim, kind=name, description=meta.to_json(), words=words)
            index = cls(server, meta, ranker)
            index._change = session
            index._enter(records, "add")
            index._change = None
            if there is None:
                rows = table.count()
                if "nlist" in parameters:
                    parameters["nlist"] = parameters["nlist"] or max(
                        1, min(round(4 * math.sqrt(rows)), rows // 39, MOST_LISTS)
                    )
                    table.describe(meta.to_json())
                table.build(name, parameters, words=words)
        return index

    @classmethod
    def open(
        cls, where: str, ranker: TextRanker | Fingerprints | None = None, *, attention: str = "basic"
    ) -> PostgresIndex:
        """Opens an index for the model that made it.

        Args:
            where: as in `make`.
            ranker, attention: as in `polyencoder.index.open.open_index`.

        Raises:
            PolyencoderError: the server cannot be reached.
            CheckpointError: there is no index, or another model made it.
        """
        server = Server(where)
        meta = server.read(lambda session: read_meta(Table(session, server.name, where=server.where), server))
        if ranker is not None:
            meta.check_model(Fingerprints.of(ranker, known=meta.fingerprints), where=server.where)
        return cls(server, meta, ranker, attention=attention)

    def close(self) -> None:
        self._server.close()

    @property
    def address(self) -> str:
        return self._server.where

    @property
    def remote(self) -> bool:
        return True

    @property
    def approximates(self) -> bool:
        return self.meta.kind != "flat"

    @property
    def has_words(self) -> bool:
        return self.meta.words

    def count(self, filter: Filter | None = None) -> int:
        return self._read(lambda table: table.count(filter))

    def count_texts(self, filter: Filter | None = None) -> int:
        return self._read(lambda table: table.count_texts(filter))

    def has_field(self, key: str) -> bool:
        return self._read(lambda table: table.has_field(key))

    def texts_of(self, ids: Iterable[str]) -> dict[str, str]:
        keys = [key_of(id_) for id_ in ids]

        def find(table: Table) -> dict[str, str]:
            found = (table.entries(some) for some in in_batches(keys, ROWS_AT_ONCE))
            return {id_: entry.text for entries in found for id_, entry in entries.items()}

        return self._read(find)

    def vectors_of(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        keys = {key_of(id_): id_ for id_ in ids}

        def find(table: Table) -> dict[str, np.ndarray[Any, Any]]:
            found = (table.vectors(some, dim=self.meta.dim) for some in in_batches(keys, ROWS_AT_ONCE))
            return {keys[key]: vector for vectors in found for key, (_, vector) in vectors.items()}

        return self._read(find)

    def check_searchable(self) -> None:
        self._read(lambda table: table.count(most=1))

    def _read(self, ask: Callable[[Table], T]) -> T:
        return self._server.read(lambda session: ask(self._table(session)))

    def _table(self, session: PostgresSession) -> Table:
        """The table. CheckpointError if it is gone, or was replaced by one of another model."""
        table = Table(session, self._server.name, where=self.address)
        meta = read_meta(table, self._server)
        meta.check_model(self.meta.fingerprints, where=self.address)
        self.meta = meta
        return table

    # Searching

    @torch.no_grad()
    def _search(
        self, contexts: ContextEncoding, options: SearchOptions, *, floors: Sequence[float] | None = None
    ) -> list[list[Hit]]:
        """Searches in one transaction, with a statement per context; of equal scores the lowest key comes first."""
        return self._read(
            lambda table: by_vectors(table, contexts, options, self.meta, attention=self.attention, floors=floors)
        )

    @torch.no_grad()
    def _search_both(
        self, contexts: ContextEncoding, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        def find(table: Table) -> tuple[list[list[Hit]], list[list[Hit]]]:
            if not self.meta.words:
                raise CheckpointError(f"{self.address}: has no words any more; open it again")
            check_contexts(contexts, dim=self.meta.dim)
            hits = [
                by_words(table, contexts.select(place), some, options, dim=self.meta.dim, attention=self.attention)
                for place, some in enumerate(turns)
            ]
            if options.words_only:
                return [[] for _ in turns], hits
            return by_vectors(table, contexts, options, self.meta, attention=self.attention), hits

        return self._read(find)

    def check(self, options: SearchOptions) -> None:
        """As in `Index.check`: a "flat" table has no effort, and no groups of codes."""
        super().check(options)
        if options.dtype != "float32":
            raise ConfigError(
                f"{self.address}: dtype is for scans of index folders; PostgreSQL only has float32", argument="dtype"
            )
        for name in ("effort", "tolerance"):
            if getattr(options, name) is not None and self.meta.kind == "flat":
                raise ConfigError(
                    f"{self.address}: {name} given, but a flat index compares everything; it is for hnsw and ivf-flat",
                    argument=name,
                )

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """As in `Index.changing`, as a transaction; waits for another process's change, half a minute at most."""
        with self._mutex:
            if self._change is not None:
                with self._change.transaction():
                    yield
                return
            with self._server.changing() as session:
                self._table(session)
                self._change = session
                try:
                    yield
                finally:
                    self._change = None

    def _in_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        with self.changing():
            return sum(step(some) for some in in_batches(items, ROWS_AT_ONCE))

    def _entry(self, candidate: Candidate) -> Entry:
        return postgres_entry(candidate)

    def _there(self, ids: Iterable[str]) -> dict[str, Entry]:
        return self._changed.entries(map(key_of, ids))

    def _stored(self, keys: Iterable[str]) -> dict[str, Array]:
        return {key: vector for key, (_, vector) in self._changed.vectors(keys, dim=self.meta.dim).items()}

    def _write(self, rows: Mapping[str, Row]) -> None:
        table = self._changed
        old = table.vectors(rows, dim=self.meta.dim)
        vectors = vectors_to_write(rows, old, self._ranker, where=self.address)
        table.delete(rows)
        table.write(((row.entry, vectors[key]) for key, row in rows.items()), words=self.meta.words)

    def _delete(self, keys: list[str]) -> None:
        self._changed.delete(keys)

    @property
    def _changed(self) -> Table:
        """The table, in the transaction of the block of `changing`."""
        assert self._change is not None
        return Table(self._change, self._server.name, where=self.address)
