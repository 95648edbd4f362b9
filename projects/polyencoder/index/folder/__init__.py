"""Index folders: a SQLite database, and memory-mapped files of vectors beside it."""
