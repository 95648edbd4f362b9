"""The tables of an index's database.

A *row* is a distinct text, and the place of its vector: 0, 1, 2, ... without gaps. An *entry* is a candidate: an id, a
row and metadata; filters find it by `fields`, the texts of its metadata's values (see `index.values`). Several entries
may share a row. A row without entries is *dead*; its vector stays in its file until the index is compacted. An index
with words also has a full-text table of the living rows, see `words`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from polyencoder.errors import CheckpointError
from polyencoder.index.folder.words import TABLE, Words
from polyencoder.index.meta import IndexMeta

_TEXTS = "CREATE TABLE {}(row INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL, text TEXT NOT NULL);"
_TABLES = f"""
{_TEXTS.format("texts")}
CREATE TABLE entries(number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, row INTEGER NOT NULL, metadata TEXT);
CREATE TABLE fields(key TEXT, value TEXT, entry INTEGER, PRIMARY KEY(key, value, entry)) WITHOUT ROWID;
CREATE TABLE dead(row INTEGER PRIMARY KEY);
CREATE TABLE files(name TEXT PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE description(json TEXT NOT NULL);
"""
# Created after the entries: sorting once is faster than keeping them sorted.
INDEXES = "CREATE INDEX entries_by_row ON entries(row);"

COMPACT = f"""
{_TEXTS.format("living")}
INSERT INTO living SELECT ROW_NUMBER() OVER (ORDER BY row) - 1, digest, text FROM texts WHERE row NOT IN dead;
UPDATE entries SET row = (SELECT living.row FROM living JOIN texts USING (digest) WHERE texts.row = entries.row);
DROP TABLE texts;
ALTER TABLE living RENAME TO texts;
DELETE FROM dead;
"""


def create_tables(connection: sqlite3.Connection, *, words: bool = False) -> None:
    """Creates the tables in a new database; `INDEXES` follow after the entries."""
    connection.executescript(_TABLES)
    if words:
        Words(connection.execute).create()


def check_tables(connection: sqlite3.Connection, folder: Path) -> None:
    """CheckpointError unless the tables are exactly an index's: a view could return anything, a trigger change it."""
    ask, words = connection.execute, Words(connection.execute)
    query = (
        "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') "
        "OR (sql LIKE '%VIRTUAL TABLE%' AND (name, sql) IS NOT ('words', ?))"
    )
    if (foreign := ask(query, (TABLE,)).fetchone()) is not None:
        raise build_damage_error(
            folder, "its database has the {} {!r:.60}, which is not part of an index".format(*foreign)
        )
    tables = _list_tables(words=words.exist)
    for name, columns in tables.items():
        if _list_columns(ask, name) != columns:
            if _list_columns(ask, "description") == tables["description"]:
                for (text,) in ask("SELECT json FROM description"):
                    IndexMeta.from_json(text, folder)  # an error, if another version made the tables
            raise build_damage_error(folder, f"its database has no valid table {name!r}")


def build_damage_error(folder: Path, what: str) -> CheckpointError:
    """The error for a damaged database."""
    return CheckpointError(f"{folder}: damaged, {what}; build it again")


@cache
def _list_tables(*, words: bool) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(":memory:")) as empty:
        create_tables(empty, words=words)
        names = [name for (name,) in empty.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: _list_columns(empty.execute, name) for name in names}


def _list_columns(ask: Callable[[str], sqlite3.Cursor], table: str) -> list[Any]:
    return [(name, kind, *rest) for _, name, kind, *rest in ask(f"PRAGMA table_xinfo({table})")]
