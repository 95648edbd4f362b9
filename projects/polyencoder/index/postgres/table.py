"""The SQL of an index's table: creation, description, reads and writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.filters import Filter, Kind
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.meta import PostgresMeta
from polyencoder.index.postgres.rows import condition, copied, tsquery
from polyencoder.index.rows import Entry
from polyencoder.packages import require

_MOST_DIM, _MOST_INDEXED, _MOST_IN_A_PAGE = 16_000, 2_000, 1_900  # the last: pages of 8 KB also hold ids and texts
_OURS = "polyencoder index "  # the prefix of our tables' comments
_TYPES: dict[Kind, str] = {"text": "string", "number": "number", "boolean": "boolean", "object": "object"}
_VERSION = (0, 8)  # pgvector's, for iterative scans with a filter


def vectors_of(fields: Iterable[bytes], *, dim: int) -> Tensor:
    """The vectors of rows, float32 [n, dim], from PostgreSQL's binary format."""
    numbers = np.frombuffer(b"".join(field[4:] for field in fields), dtype=">f4").astype(np.float32)
    return torch.from_numpy(numbers.reshape(-1, dim))


class Table:
    """The table of an index in a session.

    Attributes:
        meta: the description of the index.
    """

    meta: PostgresMeta

    def __init__(self, session: PostgresSession, server: Server) -> None:
        """Without `meta`, which `read_meta` and `create` set."""
        self.session = session
        self._sql: Any = require("psycopg.sql", extra="postgres")
        self._name, self._where = server.name, server.where

    @classmethod
    def opened(cls, session: PostgresSession, server: Server) -> Table:
        """The table of an existing index. CheckpointError if there is none, or its description is damaged."""
        table = cls(session, server)
        if not table.read_meta():
            raise CheckpointError(
                f"{server.where}: no index (no table {server.name}); make one with `Ranker.index` or `polyencoder "
                "index`"
            )
        return table

    def ask(self, text: str, values: Any = None, *, limited: bool = True, **parts: Any) -> list[tuple[Any, ...]]:
        """Executes a statement, in which `{table}` is this one; returns its rows."""
        query = self._sql.SQL(text).format(table=self._sql.Identifier(self._name), **parts)
        return self.session.ask(query, values, limited=limited)

    # Description

    def read_meta(self) -> bool:
        """Reads the description; False without a table. CheckpointError if another program made it."""
        ((there, comment),) = self.ask(
            "SELECT to_regclass(%(name)s) IS NOT NULL, obj_description(to_regclass(%(name)s), 'pg_class')",
            {"name": f'"{self._name}"'},
        )
        if not there:
            return False
        if comment is None or not comment.startswith(_OURS):
            raise CheckpointError(
                f"{self._where}: the table {self._name} exists, but was not made by polyencoder; give another #NAME"
            )
        self.meta = PostgresMeta.parsed(str(comment).removeprefix(_OURS), self._where)
        return True

    def create(self, meta: PostgresMeta) -> None:
        """Creates the table, empty and without a vector index. ConfigError for vectors that pgvector cannot hold."""
        dim, kind = meta.dim, meta.kind
        most = _MOST_DIM if kind == "flat" else _MOST_INDEXED
        if dim > most:
            raise ConfigError(
                f"{self._where}: vectors have {dim:,} numbers; pgvector supports at most {most:,} with {kind}",
                argument="postgres",
            )
        self.ask("CREATE EXTENSION IF NOT EXISTS vector")
        ((version,),) = self.ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        if tuple(int(number) for number in version.split(".")[:2]) < _VERSION:
            needed = ".".join(map(str, _VERSION))
            raise ConfigError(f"{self._where}: pgvector is {version} there; {needed} or later is needed")
        self.ask(
            'CREATE TABLE {table} (key text COLLATE "C" PRIMARY KEY, id text NOT NULL, text text NOT NULL, '
            "metadata jsonb, norm real NOT NULL, vector vector({dim}) NOT NULL)",
            dim=self._sql.Literal(dim),
        )
        if meta.words:
            self.ask("ALTER TABLE {table} ADD COLUMN words tsvector NOT NULL")
        if dim <= _MOST_IN_A_PAGE:  # in the row itself; otherwise each vector would be fetched separately
            self.ask("ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN")
        self.describe(meta)

    def describe(self, meta: PostgresMeta) -> None:
        self.ask("COMMENT ON TABLE {table} IS {comment}", comment=self._sql.Literal(_OURS + meta.to_json()))
        self.meta = meta

    def build(self) -> None:
        """Builds the indexes of norms, for certificates, of vectors, and of words."""
        kind, parameters = self.meta.kind, self.meta.parameters
        self.ask("CREATE INDEX ON {table} (norm)", limited=False)
        if self.meta.words:
            self.ask("CREATE INDEX ON {table} USING gin (words)", limited=False)
        if kind == "hnsw":
            self.ask(
                "CREATE INDEX ON {table} USING hnsw (vector vector_ip_ops) WITH (m = {m}, ef_construction = {ef})",
                limited=False,
                m=self._sql.Literal(parameters["m"]),
                ef=self._sql.Literal(parameters["ef_construction"]),
            )
        elif kind == "ivf-flat":
            self.ask(
                "CREATE INDEX ON {table} USING ivfflat (vector vector_ip_ops) WITH (lists = {lists})",
                limited=False,
                lists=self._sql.Literal(parameters["nlist"]),
            )
        self.ask("ANALYZE {table}", limited=False)

    # Reading

    def count(self, filter: Filter | None = None, *, most: int | None = None) -> int:
        """The number of rows that pass the filter; counting ends at `most`."""
        where, values = condition(filter)
        text = "SELECT count(*) FROM {table} WHERE " + where
        if most is not None:
            text = f"SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE {where} LIMIT %(most)s) AS counted"
        return int(self.ask(text, values | ({} if most is None else {"most": most}))[0][0])

    def count_texts(self, filter: Filter | None = None) -> int:
        where, values = condition(filter)
        text = f"SELECT count(*) FROM (SELECT DISTINCT text FROM {{table}} WHERE {where}) AS texts"
        return int(self.ask(text, values)[0][0])

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """As in `Index.has_field`."""
        if "\0" in key:
            return False
        condition, value = "metadata ? %s", key
        if kinds:  # a jsonpath filters the elements of a list
            some = " || ".join(f'@.type() == "{_TYPES[kind]}"' for kind in kinds)
            condition, value = "jsonb_path_exists(metadata, %s::jsonpath)", f"$.{json.dumps(key)} ? ({some})"
        return bool(self.ask(f"SELECT EXISTS (SELECT 1 FROM {{table}} WHERE {condition})", (value,))[0][0])

    def entries(self, keys: Iterable[str]) -> dict[str, Entry]:
        """The rows of these keys, by their ids."""
        rows = self.ask("SELECT id, text, metadata FROM {table} WHERE key = ANY(%s)", (list(keys),))
        return {id_: Entry(id_, text, metadata or {}) for id_, text, metadata in rows}

    def vectors(self, keys: Iterable[str]) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
        """The texts and the vectors, float32 [dim], of these keys."""
        rows = self.ask("SELECT key, text, vector FROM {table} WHERE key = ANY(%s)", (list(keys),))
        vectors = vectors_of((row[2] for row in rows), dim=self.meta.dim).numpy()
        return {key: (text, vector) for (key, text, _), vector in zip(rows, vectors, strict=True)}

    def by_words(
        self, words: Sequence[str], *, k: int, filter: Filter | None
    ) -> list[tuple[str, str, str, dict[str, Any] | None, bytes, float]]:
        """The best k rows with any of these `query_words`: key, id, text, metadata, vector, score; best first.

        A word's score is PostgreSQL's ts_rank, divided by 1 + log of the text's length, times the word's inverse
        document frequency, ln(1 + (N - n + 0.5) / (n + 0.5)), as BM25 weights the n of N rows that have it.
        """
        where, values = condition(filter)
        values |= {"queries": [tsquery(word) for word in words], "k": k}
        return self.ask(
            f"""WITH asked AS MATERIALIZED (
    SELECT query, ln(1 + (total.n - own.n + 0.5) / (own.n + 0.5)) AS weight
    FROM (SELECT unnest(%(queries)s::text[])::tsquery AS query) AS queries
    CROSS JOIN (SELECT count(*) AS n FROM {{table}}) AS total
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM {{table}} WHERE words @@ query) AS own
),
best AS MATERIALIZED (
    SELECT key, sum(weight * ts_rank(words, query, 1)) AS score
    FROM asked JOIN {{table}} ON words @@ query WHERE {where}
    GROUP BY key ORDER BY score DESC, key LIMIT %(k)s
)
SELECT key, id, text, metadata, vector, score::float8 FROM best JOIN {{table}} USING (key) ORDER BY score DESC, key""",
            values,
        )

    # Writing

    def delete(self, keys: Iterable[str]) -> None:
        self.ask("DELETE FROM {table} WHERE key = ANY(%s)", (list(keys),))

    def write(self, rows: Iterable[tuple[Entry, np.ndarray[Any, Any]]]) -> None:
        """Inserts rows with new keys."""
        words = self.meta.words
        columns = "key, id, text, metadata, norm, vector" + (", words" if words else "")
        query = self._sql.SQL(f"COPY {{table}} ({columns}) FROM STDIN (FORMAT BINARY)").format(
            table=self._sql.Identifier(self._name)
        )
        self.session.copy(query, (copied(entry, vector, words=words) for entry, vector in rows))


def literal(vector: Tensor) -> str:
    """A vector [dim] as pgvector reads it, without rounding."""
    return json.dumps(vector.float().tolist())
