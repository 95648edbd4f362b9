"""The description of an index in PostgreSQL, which is the comment of its table."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from polyencoder.errors import CheckpointError
from polyencoder.index.meta import Maker
from polyencoder.index.postgres.connection import PostgresSession, Server
from polyencoder.index.postgres.table import Table


@dataclass(frozen=True, kw_only=True)
class PostgresMeta(Maker):
    """The description of an index in PostgreSQL, the comment of its table."""

    kind: str
    parameters: dict[str, int]
    """The parameters of pgvector's index."""
    words: bool = False
    """Whether the table has the words of the texts."""


def read_meta(table: Table, server: Server) -> PostgresMeta:
    """The description of an index. CheckpointError if there is none, or it is damaged."""
    if (text := table.description()) is None:
        raise CheckpointError(
            f"{server.where}: no index (no table {server.name}); make one with `Ranker.index` or `polyencoder index`"
        )
    return PostgresMeta.parsed(text, server.where)


def described_postgres(where: str) -> list[str]:
    """A summary of an index, in lines, without its model. Errors as in `PostgresIndex.open`."""
    with closing(Server(where)) as server:

        def describe(session: PostgresSession) -> list[str]:
            table = Table(session, server.name, where=server.where)
            meta = read_meta(table, server)
            parameters = ", ".join(f"{name}={value}" for name, value in meta.parameters.items())
            how = f"{meta.kind} ({parameters})" if parameters else "flat: results are exact or certified"
            vectors = f"of {meta.dim} numbers, float32"
            lines = meta.summary(server.where, entries=table.count(), vectors=vectors)
            words = ["words: of all texts, for hybrid searches"] if meta.words else []
            return [*lines, *words, f"search: PostgreSQL, {how}"]

        return server.read(describe)
