"""`PostgresIndex`: an index in a table of a PostgreSQL database, which proposes candidates (`row_search`).

The lists of a "flat" table are exact, so they can prove a result; those of "hnsw" or "ivf-flat" are not. A search reads
a snapshot, a change is a transaction, and changes of several processes are serialized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

import numpy as np

from polyencoder.data.loader import iter_batches
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError
from polyencoder.index.documents import Split
from polyencoder.index.entries import Candidate
from polyencoder.index.filters import Filter
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints
from polyencoder.index.options import SearchOptions
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.rows import check_entry
from polyencoder.index.postgres.table import MAX_LISTS, PostgresMeta, Table, parse_kind
from polyencoder.index.row_search import Field, search_rows
from polyencoder.index.rows import ROWS_AT_ONCE, Row, RowIndex
from polyencoder.index.values import Kind
from polyencoder.index.words import split_query_words
from polyencoder.search.contexts import Contexts, check_finite
from polyencoder.search.scores import score

T = TypeVar("T")


class PostgresIndex(RowIndex):
    """Candidates in a table. Any number of processes may search and change it."""

    meta: PostgresMeta
    engine = "PostgreSQL"
    _check_entry = staticmethod(check_entry)
    rolls_back = True

    _database: Server
    _change: Any = None
    """The table, in a block of `changing`."""

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
        split: Split | None = None,
    ) -> PostgresIndex:
        """Creates an index of these candidates in one transaction, or adds them to an existing index of this model.

        Args:
            where: `postgres://USER@HOST:PORT/DATABASE#NAME`; the table is NAME, or `polyencoder`.
            kind, words: as `postgres` and `words` in `IndexOptions`; an existing index must have them, too. None for
                "flat", or the kind of the existing index.
            model_name, dim, split: as in `Maker`; None for the `split` of an existing index.

        Raises:
            PolyencoderError: the server cannot be reached, or refuses.
            CheckpointError: the table exists and was made by another model or program.
            ConfigError: the kind is invalid, does not fit the vectors, or differs from the existing index's.
        """
        name, parameters = parse_kind("flat" if kind is None else kind)
        meta = PostgresMeta.from_ranker(
            ranker, model_name=model_name, dim=dim, split=split, kind=name, parameters=parameters, words=words
        )
        server = Server(where)
        with server.changing() as session:
            table = Table(session, server)
            if exists := table.read_meta():
                table.meta.check_model(ranker, where=server.where)
                table.meta.check_split(split, where=server.where)
                table.meta.check_requested(meta, kind=kind, where=server.where)
            else:
                table.create(meta)
            index = cls(server, table.meta, ranker)
            index._change = table
            index.add(records)
            index._change = None
            if not exists:
                if meta.parameters.get("nlist") == 0:
                    rows = table.count()
                    meta.parameters["nlist"] = max(1, min(round(4 * math.sqrt(rows)), rows // 39, MAX_LISTS))
                    table.describe(meta)
                table.build()
        return index

    @classmethod
    def _open_database(cls, where: str, stack: ExitStack) -> tuple[Server, PostgresMeta]:
        server = stack.enter_context(closing(Server(where)))
        return server, server.read(lambda session: Table.open_existing(session, server).meta)

    def _describe_kind(self) -> str:
        certified = ": results can be certified" if self.meta.kind == "flat" else ""
        return f"search: PostgreSQL, {self.meta.described}{certified}"

    @property
    def has_words(self) -> bool:
        return self.meta.words

    def _read(self, ask: Callable[[Table], T]) -> T:
        return self._database.read(lambda session: ask(self._open_table(session)))

    def _open_table(self, session: PostgresSession) -> Table:
        """The table. CheckpointError if it is gone, or was replaced by one of another model."""
        table = Table.open_existing(session, self._database)
        self._model.check(table.meta, where=self.address)
        self.meta = table.meta
        return table

    # Searching

    def _search_both(
        self, contexts: Contexts, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        def find(table: Table) -> tuple[list[list[Hit]], list[list[Hit]]]:
            if not table.meta.words:
                raise CheckpointError(f"{self.address}: has no words any more; open it again")
            check_finite(contexts, dim=table.meta.dim)
            attention = self._model.get_attention(table.meta, contexts)
            pairs = ((contexts.select([row]), lines) for row, lines in enumerate(turns))
            hits = [_search_words(table, context, lines, options, attention=attention) for context, lines in pairs]
            if options.words_only:
                return [[] for _ in turns], hits
            return search_rows(table, contexts, options, attention=attention), hits

        return self._read(find)

    @property
    def takes_effort(self) -> bool:  # type: ignore[override]
        return self.meta.kind != "flat"

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `Index.changing`: a transaction, which waits for another process's change, half a minute at most."""
        with self._lock:
            if self._change is not None:
                with self._database.step(self._change.session):
                    yield
                return
            with self._database.changing() as session:
                self._change = self._open_table(session)
                try:
                    yield
                finally:
                    self._change = None

    def _run_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        with self.changing():
            return sum(step(batch) for batch in iter_batches(items, ROWS_AT_ONCE))

    def _list_ids(self, filter: Filter) -> list[str]:
        return self._change.list_ids(filter)

    def _has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        return self._change.has_field(key, kinds)

    def _fetch_rows(self, keys: Iterable[str], fields: Sequence[Field]) -> dict[str, dict[str, Any]]:
        return self._change.fetch_rows(keys, fields)

    def _write(self, rows: Mapping[str, Row]) -> None:
        table, vectors = self._change, self._fetch_vectors(rows)
        table.delete(rows)
        table.write((row.entry, vectors[key]) for key, row in rows.items())

    def _delete(self, keys: list[str]) -> None:
        self._change.delete(keys)


def _search_words(
    table: Table, context: Contexts, turns: Sequence[str], options: SearchOptions, *, attention: str
) -> list[Hit]:
    """The best `top_k` rows of one context by words, with the scores of their vectors."""
    words = split_query_words(turns)
    if not (ranking := table.search_by_words(words, k=options.k(1 << 62), filter=options.filter) if words else []):
        return []
    rows = table.fetch_rows([key for key, _ in ranking], ("id", "text", "metadata", "vector"))
    scores = score(context, np.stack([rows[key]["vector"] for key, _ in ranking]), attention=attention)[0]
    return [
        Hit(row["id"], row["text"], by_vector, row["metadata"] or None, "words", word_score=by_words)
        for (key, by_words), by_vector in zip(ranking, scores.tolist(), strict=True)
        for row in [rows[key]]
    ]
