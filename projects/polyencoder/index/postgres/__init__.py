"""PostgreSQL with pgvector as an engine of indexes: a table for each, searched in SQL and changed in transactions."""

from __future__ import annotations

from polyencoder.index.postgres.connection import SCHEMES, is_postgres
from polyencoder.index.postgres.index import PostgresIndex

__all__ = ["SCHEMES", "PostgresIndex", "is_postgres"]
