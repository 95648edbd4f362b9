"""The contents of an index's database (`schema`): texts, entries, the names of the files, the description."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.entries import Candidate, WriteMode, build_duplicate_id_error, check_candidate
from polyencoder.index.filters import Filter, Group, parse_filter, passes
from polyencoder.index.folder.conditions import build_exists, to_sql
from polyencoder.index.folder.files import is_ours
from polyencoder.index.folder.schema import COMPACT, INDEXES, build_damage_error
from polyencoder.index.folder.words import Words
from polyencoder.index.hits import Hit, Method
from polyencoder.index.values import Kind, list_field_values
from polyencoder.search.contexts import Array

# Rows given as a JSON list: one query for all of them, each looked up (CROSS JOIN: in this order)
_ROWS = "(SELECT value AS listed FROM json_each(?))"
_SORTED = 1 << 18  # values of metadata that are sorted at once, to be written in the order of their pages


class File(NamedTuple):
    """An immutable file of the index."""

    name: str
    rows: int
    """The number of vectors; 0 for other files."""
    bytes: int
    checksum: str


class Catalogue:
    """The contents of an index, through a connection with an open transaction; messages name the folder."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection = connection
        self._ask = connection.execute
        self._folder = folder

    @cached_property
    def words(self) -> Words | None:
        """The full-text table; None if the index has none."""
        words = Words(self._ask)
        return words if words.exist else None

    # Reading

    def read_description(self) -> str:
        """The text of the description, see `IndexMeta`."""
        return str(self._select_value("SELECT json FROM description"))

    def list_files(self) -> list[File]:
        """The files by name: files of vectors are in row order."""
        files = [File(*values) for values in self._ask("SELECT name, rows, bytes, checksum FROM files ORDER BY name")]
        if any([*map(type, file)] != [str, int, int, str] for file in files):
            raise self._explain_damage("its list of files is invalid")
        return files

    @property
    def rows(self) -> int:
        """The number of different texts, including dead ones."""
        return int(self._select_value("SELECT COALESCE(MAX(row) + 1, 0) FROM texts"))

    def count(self, filter: Filter | None = None) -> int:
        """The number of entries that pass the filter."""
        condition, values = to_sql(filter)
        where = f"WHERE {condition}" if values else ""  # without any SQLite does not look at the entries
        return int(self._select_value(f"SELECT COUNT(*) FROM entries {where}", values))

    def list_ids(self, filter: Filter) -> list[str]:
        """The ids of the entries that pass the filter."""
        condition, values = to_sql(filter)
        return [str(id_) for (id_,) in self._ask(f"SELECT id FROM entries WHERE {condition}", values)]

    def list_texts(self, start: int, stop: int) -> list[str]:
        """The texts of a range of rows."""
        rows = self._ask("SELECT text FROM texts WHERE row >= ? AND row < ? ORDER BY row", (start, stop))
        return [text for (text,) in rows]

    def get_row(self, text: str) -> int:
        """The row of an existing text."""
        return int(self._select_value("SELECT row FROM texts WHERE digest = ?", (digest_text(text),)))

    def find_rows(self, texts: Iterable[str]) -> dict[str, int]:
        """The rows of these texts, as far as they exist."""
        return self._select_each("SELECT row FROM texts WHERE digest = ?", {text: digest_text(text) for text in texts})

    def get_row_texts(self, rows: Iterable[int]) -> dict[int, str]:
        """The texts of these rows."""
        listed = [*rows]
        query = f"SELECT row, text FROM {_ROWS} CROSS JOIN texts ON row = listed"
        texts = dict(self._ask(query, (json.dumps(listed),)).fetchall())
        if not all(isinstance(texts.get(row), str) for row in listed):
            raise self._explain_damage("texts are missing")
        return texts

    def get_texts(self, ids: Iterable[str]) -> dict[str, str]:
        """The texts of the entries of these ids, as far as they exist."""
        return self._select_each(
            "SELECT text FROM entries JOIN texts USING (row) WHERE id = ?", {id_: id_ for id_ in ids}
        )

    def get_rows(self, ids: Iterable[str]) -> dict[str, int]:
        """The rows of the entries with these ids, for those that exist."""
        rows = self._select_each("SELECT row FROM entries WHERE id = ?", {id_: id_ for id_ in ids})
        if not all(isinstance(row, int) for row in rows.values()):
            raise self._explain_damage("a row is not a number")
        return rows

    def get_entries(
        self, rows: Iterable[int], *, limit: int | None = None, filter: Filter | None = None
    ) -> dict[int, list[tuple[str, dict[str, Any] | None]]]:
        """The id and metadata of these rows' entries that pass the filter, as inserted, at most `limit` per row."""
        entries: dict[int, list[tuple[str, dict[str, Any] | None]]] = {row: [] for row in rows}
        condition = "TRUE"
        if filter:
            self._connection.create_function("passes", 1, partial(_passes, parse_filter(filter)))
            condition = "passes(metadata)"  # of few entries: the conditions would name all that pass
        query = (
            f"SELECT listed, id, metadata FROM {_ROWS} CROSS JOIN entries ON number IN "
            f"(SELECT number FROM entries WHERE row = listed AND {condition} ORDER BY number LIMIT ?) ORDER BY number"
        )
        for row, id_, data in self._ask(query, (json.dumps([*entries]), -1 if limit is None else limit)):
            try:
                metadata = None if data is None else json.loads(data)
            except (ValueError, TypeError, RecursionError):
                metadata = data
            if not isinstance(id_, str) or not isinstance(metadata, (dict, type(None))):
                raise self._explain_damage(f"the entry {id_!r:.60} cannot be read")
            entries[row].append((id_, metadata))
        return entries

    def collect_hits(
        self,
        scores: Sequence[Sequence[float]],
        rows: Sequence[Sequence[int]],
        methods: Sequence[Method],
        *,
        limit: int | None,
        filter: Filter | None,
        by_words: Sequence[Mapping[int, float]] = (),
    ) -> list[list[Hit]]:
        """The first `limit` entries of the rows of each context, best first; entries of a row are adjacent.

        `by_words` has the scores of each context's rows in a search by words.
        """
        distinct = {row for context_rows in rows for row in context_rows}
        texts, entries = self.get_row_texts(distinct), self.get_entries(distinct, limit=limit, filter=filter)
        return [
            [
                Hit(id_, texts[row], score, metadata, method, word_score=word_scores.get(row))
                for row, score in zip(context_rows, context_scores, strict=True)
                for id_, metadata in entries[row]
            ][:limit]
            for context_scores, context_rows, method, word_scores in zip(
                scores, rows, methods, by_words or [{}] * len(rows), strict=True
            )
        ]

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """See `Index.has_field`."""
        condition, values = build_exists(key, kinds)
        return self._ask(f"SELECT 1 FROM fields WHERE {condition} LIMIT 1", values).fetchone() is not None

    def select_allowed(self, filter: Filter | None = None) -> Array | None:
        """bool [rows], True for the rows with an entry that passes the filter; None for all."""
        mask = np.full(self.rows, not filter)
        if filter:
            condition, values = to_sql(filter)
            mask[self._select_rows(f"SELECT DISTINCT row FROM entries WHERE {condition} ORDER BY row", values)] = True
        elif len(dead := self.find_dead_rows()):
            mask[dead] = False
        else:
            return None
        return mask

    def find_dead_rows(self) -> Array:
        """The rows without entries: int64, ascending."""
        return self._select_rows("SELECT row FROM dead ORDER BY row")

    def _select_rows(self, query: str, values: Sequence[Any] = ()) -> Array:
        """The rows that a query finds, ascending: int64 [n]."""
        try:
            rows = np.fromiter(self._ask(query, values), dtype=np.dtype((np.int64, (1,))))[:, 0]
        except (TypeError, ValueError, OverflowError):
            raise self._explain_damage("a row is not a number") from None
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.rows:
            raise self._explain_damage("it has rows without a text")
        return rows

    def _select_each(self, query: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a query for each value, by its key; SQLite cuts texts of a JSON list at NUL."""
        results = ((key, self._ask(query, (value,)).fetchone()) for key, value in values.items())
        return {key: row[0] for key, row in results if row is not None}

    def _explain_damage(self, what: str) -> CheckpointError:
        return build_damage_error(self._folder, what)

    # Changing

    def describe(self, text: str) -> None:
        """Writes the description."""
        self._ask("DELETE FROM description")
        self._ask("INSERT INTO description VALUES (?)", (text,))

    def add_file(self, file: File) -> None:
        """Adds a file that is on the disk, under a new name."""
        self._ask("INSERT INTO files VALUES (?, ?, ?, ?)", file)

    def forget_files(self, names: Iterable[str]) -> None:
        """Removes these files from the list."""
        self._ask("DELETE FROM files WHERE name IN (SELECT value FROM json_each(?))", (json.dumps([*names]),))

    def put(self, candidate: Candidate, *, how: WriteMode = "add", index: bool = True) -> int:
        """Enters a candidate; no-op if it exists with this id, text and metadata.

        Returns the change of the number of entries. Without `index` no filter finds it before `create_indexes`.

        Raises InputError for a text that is empty or not valid Unicode, metadata that JSON cannot hold, an id to add
        that exists with another text or other metadata, and an id to update that does not exist.
        """
        ask, removed, where = self._ask, 0, f"{candidate.where}: " if candidate.where else ""
        try:
            text, id_, metadata = check_candidate(candidate)
            digest = digest_text(text)
            id_.encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}not a candidate that an index can hold: {error}") from None
        cursor = ask("SELECT metadata, text FROM entries JOIN texts USING (row) WHERE id = ?", (id_,))
        if (entry := cursor.fetchone()) is not None:
            old_metadata, old_text = entry
            if (old_text, old_metadata) == (text, metadata):
                return 0
            if how == "add":
                other = "text" if old_text != text else "metadata"
                raise build_duplicate_id_error(candidate, id_, old_text, other=other)
            removed = self.remove(id_)
        elif how == "update":
            raise InputError(f"no candidate has the id {id_!r}", where=f"{where}{self._folder}")
        insert = "INSERT OR IGNORE INTO texts SELECT COALESCE(MAX(row) + 1, 0), ?, ? FROM texts"
        if (inserted := ask(insert, (digest, text))).rowcount:
            row, lacks_words = int(inserted.lastrowid or 0), True
        else:
            row = self._select_value("SELECT row FROM texts WHERE digest = ?", (digest,))
            lacks_words = ask("DELETE FROM dead WHERE row = ?", (row,)).rowcount > 0
        if lacks_words and self.words is not None:
            self.words.add(row, text)
        insert = "INSERT INTO entries SELECT COALESCE(MAX(number) + 1, 0), ?, ?, ? FROM entries"
        number = int(ask(insert, (id_, row, metadata)).lastrowid or 0)
        if index:
            self._add_fields(self._list_fields(metadata, number))
        return 1 + removed

    def remove(self, id_: str, *, missing_ok: bool = False) -> int:
        """Removes an entry; returns the change of their number. InputError for an unknown id, unless `missing_ok`."""
        cursor = self._ask("SELECT row, number, metadata FROM entries WHERE id = ?", (id_,))
        if (entry := cursor.fetchone()) is None:
            if missing_ok:
                return 0
            raise InputError(f"no candidate has the id {id_!r}", where=self._folder)
        row, number, metadata = entry
        where = "key = ? AND value = ? AND entry = ?"
        self._connection.executemany(f"DELETE FROM fields WHERE {where}", self._list_fields(metadata, number))
        self._ask("DELETE FROM entries WHERE id = ?", (id_,))
        dies = self._ask("INSERT INTO dead SELECT ? WHERE NOT EXISTS (SELECT 1 FROM entries WHERE row = ?)", (row, row))
        if dies.rowcount > 0 and self.words is not None:
            self.words.remove(row, self._select_value("SELECT text FROM texts WHERE row = ?", (row,)))
        return -1

    def add_words(self) -> bool:
        """Adds the full-text table; returns whether there was none. ConfigError as in `Words.create`."""
        if self.words is not None:
            return False
        words = Words(self._ask)
        words.create()
        self._fill(words)
        self.words = words
        return True

    def drop_words(self) -> None:
        """Removes the full-text table, if any: if a rollback did it, SQLite would fail in the next savepoint."""
        self.words = None
        with suppress(sqlite3.Error):  # a full disk has undone everything
            Words(self._ask).drop()

    def _fill(self, words: Words) -> None:
        words.fill(self._ask("SELECT row, text FROM texts WHERE row NOT IN dead ORDER BY row"))

    def create_indexes(self) -> None:
        """Creates the indexes of a filled database, whose entries were put without `index`."""
        self._ask(INDEXES)
        entries = self._ask("SELECT metadata, number FROM entries WHERE metadata IS NOT NULL")
        fields = chain.from_iterable(starmap(self._list_fields, entries))
        while batch := sorted(islice(fields, _SORTED)):
            self._add_fields(batch)

    def _add_fields(self, fields: Iterable[tuple[str, str, int]]) -> None:
        self._connection.executemany("INSERT INTO fields VALUES (?, ?, ?)", fields)

    def compact(self) -> None:
        """Removes the dead rows; the others keep their order."""
        for statement in COMPACT.split(";"):  # executescript would commit the open transaction
            self._ask(statement)
        if self.words is not None:
            self._fill(self.words)

    def check(self) -> str | None:
        """Checks all contents: returns a description of the damage, or None."""
        if (result := self._select_value("PRAGMA integrity_check(1)")) != "ok":
            return " ".join(str(result).split())
        for row, digest, text in self._ask("SELECT row, digest, text FROM texts"):
            if not isinstance(text, str) or digest != digest_text(text):
                return f"text {row} was altered"
        wrong = self._select_value("SELECT COUNT(*) FROM entries WHERE row NOT IN (SELECT row FROM texts)")
        if wrong:
            return f"{wrong} entries without a text"
        fields = 0
        for number, metadata in self._ask("SELECT number, metadata FROM entries"):
            for field in self._list_fields(metadata, number):
                if self._ask("SELECT 1 FROM fields WHERE (key, value, entry) = (?, ?, ?)", field).fetchone() is None:
                    return f"entry {number} lacks a value that filters look for"
                fields += 1
        if fields != self._select_value("SELECT COUNT(*) FROM fields"):
            return "filters find values that no entry has"
        return None if self.words is None else self.words.check()

    def _list_fields(self, metadata: Any, number: int) -> list[tuple[str, str, int]]:
        """The rows of the table `fields` of an entry."""
        try:
            fields = json.loads(metadata or "{}").items()
            return [(key, text, number) for key, value in fields for text in list_field_values(value)]
        except (AttributeError, TypeError, ValueError, RecursionError):
            raise self._explain_damage(f"the metadata of the entry {number} cannot be read") from None

    def _select_value(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row. Raises sqlite3.DatabaseError if there is none."""
        if (row := self._ask(query, values).fetchone()) is None:
            raise sqlite3.DatabaseError("it has no description")
        return row[0]


def _passes(group: Group, data: Any) -> bool:
    """Whether an entry's metadata pass; damaged ones do, and are an error where they are read."""
    try:
        return passes(json.loads(data or "{}"), group)
    except (AttributeError, TypeError, ValueError, RecursionError):
        return True


def digest_text(text: str) -> bytes:
    """The digest by which equal texts are found."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def check_size(folder: Path, file: File) -> None:
    """Raises CheckpointError unless a file exists with the length in the database."""
    path = folder / file.name
    if not is_ours(file.name):
        raise CheckpointError(f"{folder}: damaged, {file.name!r:.80} is not the name of an index file")
    try:
        size = path.stat().st_size
    except OSError:
        raise CheckpointError(f"{path}: missing: the index is damaged; build it again") from None
    if size != file.bytes:
        raise CheckpointError(
            f"{path}: truncated or damaged, it has {size:,} bytes instead of {file.bytes:,}; build the index again"
        )
