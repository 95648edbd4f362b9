"""The words of an index folder: a full-text table (SQLite's FTS5) in its database, ordered by BM25.

It holds the living rows, and only what BM25 needs: the texts are in `texts`. Changes of both are one transaction.

Such a table forgets a row's words if it gets them again. Python's Unicode version decides what they are, except in
ASCII, so the words of other texts are kept as they were added. (SQLite 3.43 can forget rows by their number,
`contentless_delete`, but earlier versions cannot open such a table.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from polyencoder.errors import ConfigError
from polyencoder.index.words import split_into_words

# The words come from `split_into_words`, with spaces between them: with these categories SQLite splits at nothing else,
# also where it does not know a character yet.
TABLE = (
    "CREATE VIRTUAL TABLE words USING fts5(terms, content='', "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* M* N* P* S* C*'\")"
)

ADDED_WORDS = "added_words"
"""The table of the words of texts that are not ASCII."""

MAX_MATCHES = 200_000
"""The most matches of a query's words, summed over them: BM25 takes about a microsecond for each."""


class Words:
    """The full-text table, through a connection with an open transaction."""

    def __init__(self, ask: Callable[..., sqlite3.Cursor]) -> None:
        self._ask = ask

    @property
    def exist(self) -> bool:
        """Whether the index has the table."""
        return self._ask("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone() is not None

    def create(self) -> None:
        """Creates the tables, empty. ConfigError if this SQLite has no FTS5."""
        try:
            self._ask(TABLE)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
            raise ConfigError(
                f"words need SQLite with FTS5, which this Python's ({sqlite3.sqlite_version}) lacks; use another "
                "Python, or an index without words",
                argument="words",
            ) from None
        self._ask(f"CREATE TABLE {ADDED_WORDS}(row INTEGER PRIMARY KEY, terms TEXT NOT NULL)")

    def drop(self) -> None:
        """Removes the tables, as far as they exist."""
        for table in ("words", ADDED_WORDS):
            self._ask(f"DROP TABLE IF EXISTS {table}")

    def add(self, row: int, text: str) -> None:
        """Adds the text of a row."""
        terms = " ".join(split_into_words(text))
        self._ask("INSERT INTO words(rowid, terms) VALUES (?, ?)", (row, terms))
        if not text.isascii():
            self._ask(f"INSERT INTO {ADDED_WORDS} VALUES (?, ?)", (row, terms))

    def remove(self, row: int, text: str) -> None:
        """Removes the text of a row; it must be the text that was added."""
        stored = self._ask(f"SELECT terms FROM {ADDED_WORDS} WHERE row = ?", (row,)).fetchone()
        terms = " ".join(split_into_words(text)) if stored is None else stored[0]
        self._ask("INSERT INTO words(words, rowid, terms) VALUES ('delete', ?, ?)", (row, terms))
        self._ask(f"DELETE FROM {ADDED_WORDS} WHERE row = ?", (row,))

    def fill(self, texts: Iterable[tuple[int, str]]) -> None:
        """Replaces everything by these rows and their texts."""
        self._ask("INSERT INTO words(words) VALUES ('delete-all')")
        self._ask(f"DELETE FROM {ADDED_WORDS}")
        for row, text in texts:
            self.add(row, text)

    def check(self) -> str | None:
        """Describes rows that the table lacks or should not have; None if there are none."""
        living = "SELECT row FROM texts WHERE row NOT IN dead"
        rows = "SELECT id FROM words_docsize"
        for left, right in ((living, rows), (rows, living)):
            (wrong,) = self._ask(f"SELECT COUNT(*) FROM ({left} EXCEPT {right})").fetchone()
            if wrong:
                return f"the words of {wrong} texts are missing or should not be there"
        return None

    def find(self, query: Sequence[str], *, k: int, allowed: np.ndarray[Any, Any] | None) -> list[tuple[int, float]]:
        """The best k rows with any word of the query, and their BM25; of equal ones the lowest row comes first.

        If the words (of `split_query_words`) match many rows (`MAX_MATCHES`), the commonest are left out. `allowed`,
        bool [rows], is True for the rows that may be found; None for all.
        """
        if not (query := self._select_rarest(query)):
            return []
        # Words have no quotation marks: nothing of a query is read as FTS5's syntax
        expression = " OR ".join(f'"{word}"' for word in query)
        limit = k if allowed is None else -1
        matches: Any = self._ask(
            "SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score DESC, rowid LIMIT ?",
            (expression, limit),
        )
        if allowed is not None:
            passes = allowed.tobytes()
            matches = islice(((row, score) for row, score in matches if 0 <= row < len(passes) and passes[row]), k)
        return [*matches]

    def _select_rarest(self, query: Sequence[str]) -> list[str]:
        """The words from the rarest on, at least one, as long as they match few enough rows together."""
        (rows,) = self._ask("SELECT COALESCE(MAX(id) + 1, 0) FROM words_docsize").fetchone()
        if rows * len(query) <= MAX_MATCHES:  # counting takes longer than it saves
            return [*query]
        self._ask("CREATE VIRTUAL TABLE IF NOT EXISTS temp.counts USING fts5vocab(main, words, 'row')")
        counts: dict[str, int] = {}
        for word in query:
            documents = (self._ask("SELECT doc FROM temp.counts WHERE term = ?", (part,)) for part in word.split(" "))
            counts[word] = min((row.fetchone() or (0,))[0] for row in documents)
        chosen: list[str] = []
        total = 0
        for word in sorted(filter(counts.__getitem__, counts), key=counts.__getitem__):
            total += counts[word]
            if chosen and total > MAX_MATCHES:
                break
            chosen.append(word)
        return chosen
