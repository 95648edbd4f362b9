"""`PostgresIndex`: an index in a table of a PostgreSQL database.

Exactness: *exact* if all rows were scored; *certified* by the lists of a "flat" table, if nothing outside them can be
better; *approximate* by the lists of "hnsw" or "ivf-flat". A search reads a snapshot, a change is a transaction, and
changes of several processes are serialized.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from polyencoder.data.loader import in_batches
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.base import check_contexts
from polyencoder.index.entries import Candidate
from polyencoder.index.filters import Filter, Kind
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints
from polyencoder.index.options import SearchOptions
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.meta import MOST_LISTS, PostgresMeta, parse_kind
from polyencoder.index.postgres.rows import kept_metadata
from polyencoder.index.postgres.search import by_vectors, by_words
from polyencoder.index.postgres.table import Table
from polyencoder.index.rows import ROWS_AT_ONCE, Array, Row, RowIndex, key_of
from polyencoder.scoring import ContextEncoding

T = TypeVar("T")


class PostgresIndex(RowIndex):
    """Candidates in a table. Any number of processes may search and change it."""

    meta: PostgresMeta
    engine = "PostgreSQL"
    _kept_metadata = staticmethod(kept_metadata)
    word_scoring = "ts_rank"
    rolls_back = True

    def __init__(
        self,
        server: Server,
        meta: PostgresMeta,
        ranker: TextRanker | Fingerprints | None,
        *,
        attention: str | None = None,
    ) -> None:
        super().__init__(meta, ranker, attention=attention)
        self._server = server
        self._mutex = threading.RLock()
        self._change: Table | None = None

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
            kind, words: as `postgres` and `words` in `IndexOptions`; an existing index must have them, too. None for
                "flat", or the kind of the existing index.
            model_name: where the model was loaded from, for messages.
            dim: the vectors' dimension, if candidates have vectors and `ranker` is their encoder's fingerprints.

        Raises:
            PolyencoderError: the server cannot be reached, or refuses.
            CheckpointError: the table exists and was made by another model or program.
            ConfigError: the kind is invalid, does not fit the vectors, or differs from the existing index's.
        """
        name, parameters = parse_kind("flat" if kind is None else kind)
        meta = PostgresMeta.of(ranker, model_name=model_name, dim=dim, kind=name, parameters=parameters, words=words)
        server = Server(where)
        with server.changing() as session:
            table = Table(session, server)
            if exists := table.read_meta():
                table.meta.check_model(ranker, where=server.where)
                table.meta.check_wanted(meta, kind=kind, where=server.where)
            else:
                table.create(meta)
            index = cls(server, table.meta, ranker)
            index._change = table
            index._enter(records, "add")
            index._change = None
            if not exists:
                if parameters.get("nlist") == 0:
                    rows = table.count()
                    parameters["nlist"] = max(1, min(round(4 * math.sqrt(rows)), rows // 39, MOST_LISTS))
                    table.describe(meta)
                table.build()
        return index

    @classmethod
    def open(
        cls, where: str, ranker: TextRanker | Fingerprints | None = None, *, attention: str | None = None
    ) -> PostgresIndex:
        """Opens an index for the model that made it, as `polyencoder.index.open.open_index`; `where` as in `make`."""
        with ExitStack() as failed:
            server = failed.enter_context(closing(Server(where)))
            meta = server.read(lambda session: Table.opened(session, server).meta)
            meta.check_model(ranker, where=server.where)
            index = cls(server, meta, ranker, attention=attention)
            failed.pop_all()
        return index

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

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        return self._read(lambda table: table.has_field(key, kinds))

    def texts_of(self, ids: Iterable[str]) -> dict[str, str]:
        keys = [key_of(id_) for id_ in ids]

        def find(table: Table) -> dict[str, str]:
            found = (table.entries(some) for some in in_batches(keys, ROWS_AT_ONCE))
            return {id_: entry.text for entries in found for id_, entry in entries.items()}

        return self._read(find)

    def vectors_of(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        keys = {key_of(id_): id_ for id_ in ids}

        def find(table: Table) -> dict[str, np.ndarray[Any, Any]]:
            found = (table.vectors(some) for some in in_batches(keys, ROWS_AT_ONCE))
            return {keys[key]: vector for vectors in found for key, (_, vector) in vectors.items()}

        return self._read(find)

    def check_searchable(self) -> None:
        self._read(lambda table: table.count(most=1))

    def _read(self, ask: Callable[[Table], T]) -> T:
        return self._server.read(lambda session: ask(self._table(session)))

    def _table(self, session: PostgresSession) -> Table:
        """The table. CheckpointError if it is gone, or was replaced by one of another model."""
        table = Table.opened(session, self._server)
        self._model.check(table.meta, where=self.address)
        self.meta = table.meta
        return table

    # Searching

    @torch.no_grad()
    def _search(
        self, contexts: ContextEncoding, options: SearchOptions, *, floors: Sequence[float] | None = None
    ) -> list[list[Hit]]:
        """Searches in one transaction, with a statement per context; of equal scores the lowest key comes first."""

        def find(table: Table) -> list[list[Hit]]:
            attention = self._model.attention(table.meta, contexts)
            return by_vectors(table, contexts, options, attention=attention, floors=floors)

        return self._read(find)

    @torch.no_grad()
    def _search_both(
        self, contexts: ContextEncoding, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        def find(table: Table) -> tuple[list[list[Hit]], list[list[Hit]]]:
            if not table.meta.words:
                raise CheckpointError(f"{self.address}: has no words any more; open it again")
            check_contexts(contexts, dim=table.meta.dim)
            attention = self._model.attention(table.meta, contexts)
            hits = [
                by_words(table, contexts.select(place), some, options, attention=attention)
                for place, some in enumerate(turns)
            ]
            if options.words_only:
                return [[] for _ in turns], hits
            return by_vectors(table, contexts, options, attention=attention), hits

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
                with self._server.step(self._change.session):
                    yield
                return
            with self._server.changing() as session:
                self._change = self._table(session)
                try:
                    yield
                finally:
                    self._change = None

    def _in_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        with self.changing():
            return sum(step(some) for some in in_batches(items, ROWS_AT_ONCE))

    def _there(self, ids: Iterable[str]) -> dict[str, Row]:
        found = self._changed.entries(map(key_of, ids))
        return {id_: Row(entry, is_stored=True) for id_, entry in found.items()}

    def _stored(self, keys: Iterable[str]) -> dict[str, tuple[str, Array]]:
        return self._changed.vectors(keys)

    def _write(self, rows: Mapping[str, Row]) -> None:
        table, vectors = self._changed, self._vectors_of(rows)
        table.delete(rows)
        table.write((row.entry, vectors[key]) for key, row in rows.items())

    def _delete(self, keys: list[str]) -> None:
        self._changed.delete(keys)

    @property
    def _changed(self) -> Table:
        """The table, in the transaction of the block of `changing`."""
        assert self._change is not None
        return self._change


def described_postgres(where: str) -> list[str]:
    """A summary of an index, in lines, without its model. Errors as in `PostgresIndex.open`."""

    def describe(session: PostgresSession) -> list[str]:
        table = Table.opened(session, server)
        meta = table.meta
        parameters = ", ".join(f"{name}={value}" for name, value in meta.parameters.items())
        how = f"{meta.kind} ({parameters})" if parameters else "flat: results are exact or certified"
        lines = meta.summary(server.where, entries=table.count(), vectors=f"of {meta.dim} numbers, float32")
        words = ["words: of all texts, for hybrid searches"] if meta.words else []
        return [*lines, *words, f"search: PostgreSQL, {how}"]

    with closing(Server(where)) as server:
        return server.read(describe)
