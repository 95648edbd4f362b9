"""The texts of an index and what users call them: one SQLite file.

A *row* is a different text, and the place of its vector: 0, 1, 2, ... without holes. An *entry* is what a user put in:
an id, a row and metadata. Several entries may share a row. A row that no entry uses any more is *dead*; its vector
stays in its file until the index is compacted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.base import Candidate
from polyencoder.index.entries import checked, shortened
from polyencoder.index.options import Filter, checked_filter

CATALOGUE = "catalogue.sqlite"

_TABLES = """
CREATE TABLE texts(row INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL, text TEXT NOT NULL);
CREATE TABLE entries(number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, row INTEGER NOT NULL, metadata TEXT);
CREATE TABLE dead(row INTEGER PRIMARY KEY);
"""
# Made when the entries are in: sorting them once is quicker than keeping them sorted.
_INDEXES = "CREATE INDEX entries_by_row ON entries(row);"

# Rows given as a JSON list: one query for all of them, each looked up (CROSS JOIN: in this order)
_WANTED = "(SELECT value AS wanted FROM json_each(?))"

_CACHE_KB = 64 << 10


class Catalogue:
    """The texts and entries of an index: read from a file that never changes, or written to one that nobody reads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()  # a server's threads share the connection
        weakref.finalize(self, connection.close)
        self.changes = 0
        """How many entries were put in or taken out since it was opened."""
        self.rows = 0
        """The number of different texts, dead ones too."""
        self._next_number = 0
        self._entries: int | None = None
        self._count_anew()

    @classmethod
    def create(cls, path: Path) -> Catalogue:
        """A new catalogue in an empty file, for one long `fill`: a kill may damage the file."""
        connection = _connect(path)
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; " + _TABLES)
        return cls(path, connection)

    @classmethod
    def open(cls, path: Path) -> Catalogue:
        """A catalogue to read: without locks, journals or anything else that would touch another's files."""
        return cls._opened(path, "mode=ro&immutable=1")

    @classmethod
    def draft(cls, path: Path) -> Catalogue:
        """A catalogue to change, in a file that nobody else knows of yet."""
        return cls._opened(path, "mode=rw")

    @classmethod
    def copied(cls, source: Path, target: Path) -> Catalogue:
        """A copy of a catalogue, to change."""
        shutil.copyfile(source, target)
        return cls.draft(target)

    @classmethod
    def _opened(cls, path: Path, how: str) -> Catalogue:
        try:
            _roll_back(path)
            return cls(path, _connect(path, how))
        except sqlite3.Error as error:
            raise CheckpointError(f"{path}: missing or damaged ({error}); build the index again") from None

    def close(self) -> None:
        self._connection.close()

    def __len__(self) -> int:
        """The number of entries."""
        if self._entries is None:
            self._entries = self.count()
        return self._entries

    # Reading

    def texts(self, start: int, stop: int) -> list[str]:
        """The texts of a range of rows."""
        return [text for (text,) in self._ask("SELECT text FROM texts WHERE row >= ? AND row < ?", start, stop)]

    def text_of(self, rows: Iterable[int]) -> dict[int, str]:
        """The texts of these rows."""
        return dict(self._ask(f"SELECT row, text FROM {_WANTED} CROSS JOIN texts ON row = wanted", json.dumps([*rows])))

    def entries_of(
        self, rows: Iterable[int], *, filter: Filter | None = None
    ) -> dict[int, list[tuple[str, dict[str, Any] | None]]]:
        """The id and metadata of each entry of these rows that the filter lets through, in the order they came."""
        entries: dict[int, list[tuple[str, dict[str, Any] | None]]] = {row: [] for row in rows}
        condition, values = _condition(filter)
        query = (
            f"SELECT row, id, metadata FROM {_WANTED} CROSS JOIN entries ON row = wanted WHERE {condition} "
            "ORDER BY number"
        )
        for row, id_, data in self._ask(query, json.dumps([*entries]), *values):
            entries[row].append((id_, None if data is None else json.loads(data)))
        return entries

    def count(self, filter: Filter | None = None) -> int:
        """The number of entries that the filter lets through."""
        condition, values = _condition(filter)
        ((count,),) = self._ask(f"SELECT COUNT(*) FROM entries WHERE {condition}", *values)
        return int(count)

    def has_field(self, key: str) -> bool:
        """Whether the metadata of any entry has this field."""
        return bool(self._ask("SELECT 1 FROM entries WHERE json_type(metadata, ?) IS NOT NULL LIMIT 1", _path(key)))

    def rows_matching(self, filter: Filter) -> Tensor:
        """The rows with an entry that has these metadata: int64, ascending."""
        condition, values = _condition(filter)
        return self._row_numbers(f"SELECT DISTINCT row FROM entries WHERE {condition} ORDER BY row", *values)

    def dead_rows(self) -> Tensor:
        """The rows that no entry uses: int64, ascending."""
        return self._row_numbers("SELECT row FROM dead ORDER BY row")

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """What is changed in the block is kept when it ends well, and forgotten otherwise. Blocks may be nested."""
        self._connection.execute("SAVEPOINT block")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK TO block")
            self._count_anew()
            raise
        finally:
            self._connection.execute("RELEASE block")

    def put(self, candidate: Candidate, *, replace: bool = False) -> None:
        """Enter a candidate; nothing happens if it is there already with this id, text and metadata.

        Raises InputError for a text that is empty or no valid Unicode, metadata that JSON cannot hold, and an id that
        is there with another text or other metadata, unless it is to `replace` that.
        """
        where = f"{candidate.where}: " if candidate.where else ""
        try:
            text, id_, metadata = checked(candidate)
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            id_.encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}not a candidate that an index can hold: {error}") from None
        ask = self._connection.execute
        known = ask("SELECT number, row, metadata, text FROM entries JOIN texts USING (row) WHERE id = ?", (id_,))
        if (entry := known.fetchone()) is not None:
            number, _, old_metadata, old_text = entry
            if (old_text, old_metadata) == (text, metadata):
                return
            if not replace:
                other = "text" if old_text != text else "metadata"
                raise InputError(
                    f"{where}the id {id_!r} is that of candidate {number + 1} already, {shortened(old_text)}, which "
                    f"has other {other}: give each candidate an id of its own, or update the one that is there"
                )
            self.remove(id_)
        if (known_row := ask("SELECT row FROM texts WHERE digest = ?", (digest,)).fetchone()) is None:
            row = self.rows
            ask("INSERT INTO texts VALUES (?, ?, ?)", (row, digest, text))
            self.rows += 1
        else:
            row = known_row[0]
            ask("DELETE FROM dead WHERE row = ?", (row,))
        ask("INSERT INTO entries VALUES (?, ?, ?, ?)", (self._next_number, id_, row, metadata))
        self._next_number += 1
        self.changes += 1
        self._entries = None

    def remove(self, id_: str, *, missing_ok: bool = False) -> None:
        """Take an entry out. Raises InputError if there is none of this id, unless one may be missing."""
        ask = self._connection.execute
        if (entry := ask("SELECT row FROM entries WHERE id = ?", (id_,)).fetchone()) is None:
            if missing_ok:
                return
            raise InputError(f"{self.path.parent}: no candidate has the id {id_!r}")
        ask("DELETE FROM entries WHERE id = ?", (id_,))
        ask("INSERT INTO dead SELECT ? WHERE NOT EXISTS (SELECT 1 FROM entries WHERE row = ?)", (*entry, *entry))
        self.changes += 1
        self._entries = None

    def fill(self, candidates: Iterable[Candidate]) -> None:
        """Enter all candidates into a new catalogue, which is of no use after an error."""
        self._connection.execute("BEGIN")
        for candidate in candidates:
            self.put(candidate)
        self._connection.execute(_INDEXES)
        self._connection.execute("COMMIT")

    def copy_living(self, path: Path) -> None:
        """Write a catalogue without the dead rows to a new file; the others keep their order."""
        with closing(_connect(path)) as new:
            new.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; " + _TABLES)
            new.execute("ATTACH ? AS old", (str(self.path),))
            new.executescript(
                "BEGIN; "
                "INSERT INTO texts SELECT ROW_NUMBER() OVER (ORDER BY row) - 1, digest, text FROM old.texts "
                "WHERE row NOT IN old.dead; "
                "INSERT INTO entries SELECT e.number, e.id, new.row, e.metadata FROM old.entries e "
                "JOIN old.texts t ON t.row = e.row JOIN main.texts new ON new.digest = t.digest ORDER BY e.number; "
                f"{_INDEXES} COMMIT;"
            )

    def _count_anew(self) -> None:
        self.rows = self._next("texts", "row")
        self._next_number = self._next("entries", "number")
        self._entries = None  # counted when someone asks

    def _ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _row_numbers(self, query: str, *values: Any) -> Tensor:
        with self._lock:
            rows = (row for (row,) in self._connection.execute(query, values))
            return torch.from_numpy(np.fromiter(rows, dtype=np.int64))

    def _next(self, table: str, column: str) -> int:
        ((last,),) = self._ask(f"SELECT MAX({column}) FROM {table}")
        return 0 if last is None else last + 1


def _condition(filter: Filter | None) -> tuple[str, list[Any]]:
    """A filter in SQL, with the values of its question marks, of which SQLite allows only so many."""
    conditions: list[str] = []
    values: list[Any] = []
    for key, options in checked_filter(filter).items():
        path, some = _path(key), ["FALSE"]
        if any(option is None for option in options):
            some.append("json_extract(metadata, ?) IS NULL")  # a field that is missing equals None
            values.append(path)
        long = [option for option in options if _is_long(option)]
        if short := [option for option in options if option is not None and not _is_long(option)]:
            some.append("json_extract(metadata, ?) IN (SELECT value FROM json_each(?))")
            values += [path, json.dumps(short)]
        if long:  # as numbers they would be rounded: of two paths SQLite gives the values as they stand in the text
            some.append("json_extract(metadata, ?, ?) IN (SELECT value FROM json_each(?))")
            values += [path, path, json.dumps([f"[{option},{option}]" for option in long])]
        conditions.append(" OR ".join(some))
    return " AND ".join(f"({condition})" for condition in conditions) or "TRUE", values


def _is_long(value: Any) -> bool:
    """Whether it is a whole number that SQLite does not hold."""
    return isinstance(value, int) and value.bit_length() > 63


def _path(key: str) -> str:
    """Where a field is in the metadata: the key as JSON writes it. InputError for one that SQLite cannot be told."""
    if '"' in key:
        raise InputError(f"cannot filter by {key!r:.60}: an index folder has no filter with a quotation mark in a name")
    return f'$."{json.dumps(key, ensure_ascii=False)[1:-1]}"'


def _connect(path: Path, how: str = "mode=rwc") -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,  # transactions begin and end where `changing` says
        check_same_thread=False,
    )
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    return connection


def _roll_back(path: Path) -> None:
    """Undo what a killed change has left half done in a catalogue that was still changed in its place."""
    if Path(f"{path}-journal").exists():
        with closing(_connect(path, "mode=rw")) as connection:
            connection.execute("SELECT COUNT(*) FROM sqlite_master")  # reading is enough
