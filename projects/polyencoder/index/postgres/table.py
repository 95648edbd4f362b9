"""The SQL of an index's table, a `row_search.Rows`: creation, description, reads and writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from polyencoder.data.loader import iter_batches
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.filters import Filter
from polyencoder.index.meta import Maker
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.rows import format_tsquery, write_condition, write_row
from polyencoder.index.row_search import Field
from polyencoder.index.rows import ROWS_AT_ONCE, Entry
from polyencoder.index.terms import list_field_terms
from polyencoder.index.values import Kind
from polyencoder.packages import require
from polyencoder.search.contexts import Array
from polyencoder.validation import validated

KINDS: dict[str, dict[str, int]] = {"flat": {}, "hnsw": {"m": 16, "ef_construction": 128}, "ivf-flat": {"nlist": 0}}
"""Kind of index -> pgvector's parameters and their defaults; 0: by the number of rows."""

MAX_LISTS = 32_768  # pgvector's maximum

_LIMITS = {"m": (2, 100), "ef_construction": (4, 1000), "nlist": (1, MAX_LISTS)}


@validated
class PostgresMeta(Maker):
    """The description of an index in PostgreSQL."""

    kind: str
    parameters: dict[str, int]
    """The parameters of pgvector's index."""
    words: bool = False
    """Whether the table has the words of the texts."""

    def check_requested(self, requested: PostgresMeta, *, kind: str | None, where: str) -> None:
        """Raises ConfigError unless this index is as `requested`, by a `kind` as for `parse_kind`, if any."""
        named = {name: value for name, value in requested.parameters.items() if f"{name}=" in (kind or "")}
        if kind and (self.kind != requested.kind or named.items() - self.parameters.items()):
            raise ConfigError(
                f"{where}: exists as {self.described}, not {kind}; give another #NAME", argument="postgres"
            )
        if requested.words and not self.words:
            raise ConfigError(f"{where}: exists, without words; give another #NAME", argument="words")

    @property
    def described(self) -> str:
        """The kind with its parameters."""
        return ",".join([self.kind, *(f"{name}={value}" for name, value in self.parameters.items())])


def parse_kind(text: str) -> tuple[str, dict[str, int]]:
    """Parses a kind of index with its parameters: `"hnsw,m=32"`. ConfigError for an unknown one."""
    kind, *settings = text.split(",")
    if kind not in KINDS:
        raise ConfigError(f"postgres is {text!r:.60}; it must be one of {', '.join(KINDS)}", argument="postgres")
    parameters = dict(KINDS[kind])
    names = [setting.partition("=")[0] for setting in settings]
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in parameters or not value.isdecimal() or names.count(name) > 1:
            form = ", ".join(f"{name}=NUMBER" for name in parameters) + ", each once" if parameters else "no parameters"
            raise ConfigError(f"postgres is {text!r:.60}; {setting!r:.60}: {kind} has {form}", argument="postgres")
        lowest, highest = _LIMITS[name]
        if not lowest <= (number := int(value[:20])) <= highest:
            raise ConfigError(
                f"postgres: {name} is {number}; it must be from {lowest} to {highest}", argument="postgres"
            )
        parameters[name] = number
    if kind == "hnsw" and parameters["ef_construction"] < 2 * parameters["m"]:
        raise ConfigError("postgres: ef_construction must be at least twice m", argument="postgres")
    return kind, parameters


_MAX_DIM, _MAX_INDEXED, _MAX_IN_A_PAGE = 16_000, 2_000, 1_900  # the last: pages of 8 KB also hold ids and texts
_OURS = "polyencoder index "  # the prefix of our tables' comments
_VERSION = (0, 8)  # pgvector's, for iterative scans with a filter
_SCAN_ROWS = 8192  # rows that pass a filter: comparing these is faster than an index
_MAX_EF = 1000  # of pgvector


def parse_vector(field: bytes) -> Array:
    """A vector, float32 [dim], from PostgreSQL's binary format."""
    return np.frombuffer(field[4:], dtype=">f4").astype(np.float32)


class Table:
    """The table of an index in a session."""

    meta: PostgresMeta
    longest_list = 1 << 30

    def __init__(self, session: PostgresSession, server: Server) -> None:
        """Without `meta`, which `read_meta` and `create` set."""
        self.session = session
        self._sql: Any = require("psycopg.sql", extra="postgres")
        self._name, self._where = server.name, server.where

    @classmethod
    def open_existing(cls, session: PostgresSession, server: Server) -> Table:
        """The table of an existing index. CheckpointError if there is none, or its description is damaged."""
        table = cls(session, server)
        if not table.read_meta():
            how = "make one with `Ranker.index` or `polyencoder index`"
            raise CheckpointError(f"{server.where}: no index (no table {server.name}); {how}")
        return table

    def ask(self, text: str, values: Any = None, *, limited: bool = True, **parts: Any) -> list[tuple[Any, ...]]:
        """Executes a statement, in which `{table}` is this one; returns its rows."""
        query = self._sql.SQL(text).format(table=self._sql.Identifier(self._name), **parts)
        return self.session.ask(query, values, limited=limited)

    # Description

    def read_meta(self) -> bool:
        """Reads the description; False without a table. CheckpointError if another program made it."""
        ((exists, comment),) = self.ask(
            "SELECT to_regclass(%(name)s) IS NOT NULL, obj_description(to_regclass(%(name)s), 'pg_class')",
            {"name": f'"{self._name}"'},
        )
        if not exists:
            return False
        if comment is None or not comment.startswith(_OURS):
            what = f"the table {self._name} exists, but was not made by polyencoder; give another #NAME"
            raise CheckpointError(f"{self._where}: {what}")
        self.meta = PostgresMeta.from_json(str(comment).removeprefix(_OURS), self._where)
        return True

    def create(self, meta: PostgresMeta) -> None:
        """Creates the table, empty and without a vector index. ConfigError for vectors that pgvector cannot hold."""
        dim, max_dim = meta.dim, _MAX_DIM if meta.kind == "flat" else _MAX_INDEXED
        if dim > max_dim:
            what = f"vectors have {dim:,} numbers; pgvector supports at most {max_dim:,} with {meta.kind}"
            raise ConfigError(f"{self._where}: {what}", argument="postgres")
        self.ask("CREATE EXTENSION IF NOT EXISTS vector")
        ((version,),) = self.ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        if tuple(int(number) for number in version.split(".")[:2]) < _VERSION:
            raise ConfigError(f"{self._where}: pgvector is {version} there; {'.'.join(map(str, _VERSION))} is needed")
        self.ask(
            'CREATE TABLE {table} (key text COLLATE "C" PRIMARY KEY, id text NOT NULL, text text NOT NULL, '
            "metadata json, terms text[] NOT NULL, bounds jsonb NOT NULL, norm real NOT NULL, "
            f"vector vector({dim}) NOT NULL"
            f"{', words tsvector NOT NULL' if meta.words else ''})"
        )
        if dim <= _MAX_IN_A_PAGE:  # in the row itself; otherwise each vector would be fetched separately
            self.ask("ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN")
        self.describe(meta)

    def describe(self, meta: PostgresMeta) -> None:
        self.ask("COMMENT ON TABLE {table} IS {comment}", comment=self._sql.Literal(_OURS + meta.to_json()))
        self.meta = meta

    def build(self) -> None:
        """Builds the indexes of norms, for certificates, of terms, for filters, of vectors, and of words."""
        kind, parameters = self.meta.kind, self.meta.parameters
        columns = ["(norm)", "USING gin (terms)", *(["USING gin (words)"] if self.meta.words else [])]
        if kind != "flat":
            method, settings = ("hnsw", parameters) if kind == "hnsw" else ("ivfflat", {"lists": parameters["nlist"]})
            options = ", ".join(f"{name} = {value}" for name, value in settings.items())
            columns.append(f"USING {method} (vector vector_ip_ops) WITH ({options})")
        for column in columns:
            self.ask(f"CREATE INDEX ON {{table}} {column}", limited=False)
        self.ask("ANALYZE {table}", limited=False)

    # Reading

    def count(self, filter: Filter | None = None, *, limit: int | None = None) -> int:
        where, values = write_condition(filter)
        text = f"SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE {where} LIMIT %(limit)s) AS counted"
        return int(self.ask(text, values | {"limit": limit})[0][0])

    def count_texts(self, filter: Filter | None = None) -> int:
        where, values = write_condition(filter)
        return int(self.ask(f"SELECT count(DISTINCT text) FROM {{table}} WHERE {where}", values)[0][0])

    def list_ids(self, filter: Filter) -> list[str]:
        """The ids of the rows that pass the filter."""
        where, values = write_condition(filter)
        return [id_ for (id_,) in self.ask(f"SELECT id FROM {{table}} WHERE {where}", values)]

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        text = "SELECT EXISTS (SELECT 1 FROM {table} WHERE terms && %s::text[])"
        return bool(self.ask(text, (list_field_terms(key, kinds),))[0][0])

    def fetch_rows(self, keys: Iterable[str], fields: Sequence[Field]) -> dict[str, dict[str, Any]]:
        query = f"SELECT {', '.join(fields)}, key FROM {{table}} WHERE key = ANY(%s)"
        rows: dict[str, dict[str, Any]] = {}
        for batch in iter_batches(keys, ROWS_AT_ONCE):
            for *values, key in self.ask(query, (batch,)):
                row = rows[key] = dict(zip(fields, values, strict=True))
                if "vector" in row:
                    row["vector"] = parse_vector(row["vector"])
                if "metadata" in row:
                    row["metadata"] = row["metadata"] or {}
        return rows

    def has_exact_lists(self, available: int) -> bool:
        return self.meta.kind == "flat" or available <= _SCAN_ROWS

    def search_nearest(
        self, queries: Array, length: int, *, filter: Filter | None, effort: int | None, exact: bool
    ) -> list[dict[str, float]]:
        where, values = write_condition(filter)
        self._plan(length=length, effort=effort, exact=exact)
        values |= {"queries": [json.dumps(query.tolist()) for query in queries], "length": length}
        rows = self.ask(  # OFFSET 0, or each comparison would parse its query
            f"""SELECT queries.number, near.key, near.product
FROM (SELECT number, query::vector FROM unnest(%(queries)s::text[]) WITH ORDINALITY t(query, number) OFFSET 0) queries
CROSS JOIN LATERAL (
    SELECT key, -(vector <#> queries.query) AS product FROM {{table}} WHERE {where}
    ORDER BY vector <#> queries.query LIMIT %(length)s
) AS near""",
            values,
        )
        lists: list[dict[str, float]] = [{} for _ in queries]
        for number, key, product in rows:
            lists[number - 1][key] = product
        return lists

    def _plan(self, *, length: int, effort: int | None, exact: bool) -> None:
        """Sets how PostgreSQL finds neighbours from here on; `exact` searches use no index, not even a foreign one."""
        self.session.set({"enable_indexscan": "off" if exact else "on", "enable_seqscan": "on" if exact else "off"})
        if not exact and self.meta.kind == "hnsw":
            ef = min(_MAX_EF, max(effort or 0, length))
            self.session.set({"hnsw.ef_search": ef, "hnsw.iterative_scan": "strict_order"})
        elif not exact:
            probes = min(MAX_LISTS, effort or max(1, self.meta.parameters["nlist"] // 8))
            self.session.set({"ivfflat.probes": probes, "ivfflat.iterative_scan": "relaxed_order"})

    def bound_norm(self) -> float:
        self.session.set({"enable_indexscan": "on"})
        return float(self.ask("SELECT max(norm)::float8 FROM {table}")[0][0])

    def iter_pages(self, filter: Filter | None) -> Iterator[tuple[list[str], Array]]:
        where, values = write_condition(filter)
        self.session.set({"enable_indexscan": "on"})
        text = f"SELECT key, vector FROM {{table}} WHERE {where} AND key > %(after)s ORDER BY key LIMIT {ROWS_AT_ONCE}"
        values["after"] = ""
        while rows := self.ask(text, values):
            yield [key for key, _ in rows], np.stack([parse_vector(vector) for _, vector in rows])
            values["after"] = rows[-1][0]

    def search_by_words(self, words: Sequence[str], *, k: int, filter: Filter | None) -> list[tuple[str, float]]:
        """The keys and scores of the best k rows with any of these `split_query_words`, best first.

        A word's score is PostgreSQL's ts_rank, divided by 1 + log of the text's length, times the word's inverse
        document frequency, ln(1 + (N - n + 0.5) / (n + 0.5)), as BM25 weights the n of N rows that have it.
        """
        where, values = write_condition(filter)
        values |= {"queries": [format_tsquery(word) for word in words], "k": k}
        rows = self.ask(
            f"""WITH weighted AS MATERIALIZED (
    SELECT query, ln(1 + (total.n - matching.n + 0.5) / (matching.n + 0.5)) AS weight
    FROM (SELECT unnest(%(queries)s::text[])::tsquery AS query) AS queries
    CROSS JOIN (SELECT count(*) AS n FROM {{table}}) AS total
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM {{table}} WHERE words @@ query) AS matching
)
SELECT key, sum(weight * ts_rank(words, query, 1))::float8 AS score
FROM weighted JOIN {{table}} ON words @@ query WHERE {where} GROUP BY key ORDER BY score DESC, key LIMIT %(k)s""",
            values,
        )
        return [(key, score) for key, score in rows]

    # Writing

    def delete(self, keys: Iterable[str]) -> None:
        self.ask("DELETE FROM {table} WHERE key = ANY(%s)", (list(keys),))

    def write(self, rows: Iterable[tuple[Entry, np.ndarray[Any, Any]]]) -> None:
        """Inserts rows with new keys."""
        words = self.meta.words
        columns = "key, id, text, metadata, terms, bounds, norm, vector" + (", words" if words else "")
        text = f"COPY {{table}} ({columns}) FROM STDIN (FORMAT BINARY)"
        query = self._sql.SQL(text).format(table=self._sql.Identifier(self._name))
        self.session.copy(query, (write_row(entry, vector, words=words) for entry, vector in rows))
