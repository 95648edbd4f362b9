"""PostgreSQL with pgvector as an engine of indexes: a table for each, searched in SQL and changed in transactions."""
