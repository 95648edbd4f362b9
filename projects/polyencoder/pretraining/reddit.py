"""Converts Reddit dumps to pairs of contexts and responses: filters comments, joins them to their parents.

Skips comments that are too short or long (as PolyAI does), or not written by people. An index on disk puts the
comments in the order of their threads.
"""

from __future__ import annotations

import html
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import Parameter

from polyencoder.data.readers import OnBad, iter_records, raise_it
from polyencoder.errors import ConfigError, InputError

REASONS = ("not text", "deleted or removed", "bot", "too short", "too long", "link", "quote", "code")
"""Why a comment is skipped, in the order of checks."""

_DELETED = {"[deleted]", "[removed]"}
_BOT = re.compile(r"bot\d*$|^automoderator$|^autowikibot$", re.IGNORECASE)
_LINK = re.compile(r"https?://|www\.|\[[^\]]*\]\([^)]*\)", re.IGNORECASE)
_QUOTE = re.compile(r"^\s*>", re.MULTILINE)
_CODE = re.compile(r"```|`[^`]+`|^(?: {4}|\t)\S", re.MULTILINE)

INSERTED_ROWS = 10_000  # in a transaction
ROOT = -1  # the number of a submission in its thread
_ID = re.compile(r"[0-9a-z]{1,13}", re.IGNORECASE | re.ASCII)
_LARGEST = 2**63 - 1  # of SQLite's integers
_KINDS = {"t1_": "comment", "t3_": "submission"}


@Parameter(name="*")
@dataclass(frozen=True)
class Filters:
    """Filters of comments."""

    min_length: int = 9
    """Minimum characters of a comment."""
    max_length: int = 127
    """Maximum characters of a comment."""
    keep_bots: bool = False
    """Keep authors whose names end in `bot`."""
    keep_links: bool = False
    """Keep comments with links."""
    keep_quotes: bool = False
    """Keep comments that quote."""
    keep_code: bool = False
    """Keep comments with code."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise ConfigError(
                f"min_length is {self.min_length} and max_length {self.max_length}; they must be at least 1, and in "
                "this order",
                argument="min_length",
            )

    def clean_text(self, body: Any, author: Any) -> str:
        """Cleans a text: joins lines by spaces and decodes HTML entities. SkippedComment: it is left out."""
        if not isinstance(body, str) or not body.strip():
            raise SkippedComment("not text")
        if body.strip() in _DELETED or author in _DELETED:
            raise SkippedComment("deleted or removed")
        if not self.keep_bots and isinstance(author, str) and _BOT.search(author):
            raise SkippedComment("bot")
        raw = html.unescape(body)
        text = " ".join(raw.split())
        if not any(character.isalnum() for character in text):
            raise SkippedComment("not text")
        if len(text) < self.min_length:
            raise SkippedComment("too short")
        if len(text) > self.max_length:
            raise SkippedComment("too long")
        for reason, allowed, pattern in (
            ("link", self.keep_links, _LINK),
            ("quote", self.keep_quotes, _QUOTE),
            ("code", self.keep_code, _CODE),
        ):
            if not allowed and pattern.search(raw):
                raise SkippedComment(reason)
        return text

    def read_text(self, record: Mapping[str, Any]) -> str:
        """The text of a comment (`body`) or of a submission (`title`)."""
        return self.clean_text(record.get("body", record.get("title")), record.get("author"))


class SkippedComment(Exception):
    """A comment is skipped, for one of `REASONS`."""


class Comment(NamedTuple):
    """A comment, and the path of its ancestors, oldest first."""

    context: Sequence[str]
    response: str
    thread: int


class ThreadIndex:
    """An on-disk index of kept texts, ordered by thread; a context manager, at whose end `path` is removed.

    In memory are rows of one thread, and SQLite's cache. left_out: the number of skipped texts, by reason.
    num_texts: the number of different kept texts that `iter_replies` has read.
    """

    def __init__(self, path: Path, filters: Filters) -> None:
        self.path, self.left_out, self.num_texts = path, Counter[str](), 0
        self._filters = filters
        path.unlink(missing_ok=True)
        self._rows = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000"):  # a kill starts it anew
            self._rows.execute(f"PRAGMA {pragma}")
        # dumps come in the order of time, and so do the numbers of threads: the table grows near its end
        columns = "thread INTEGER, number INTEGER, parent INTEGER, text TEXT, PRIMARY KEY (thread, number)"
        self._rows.execute(f"CREATE TABLE texts ({columns}) WITHOUT ROWID")

    def __enter__(self) -> ThreadIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self.path.unlink(missing_ok=True)

    def read(self, files: Iterable[str], *, bad: OnBad = raise_it) -> Iterator[int]:
        """Reads comments and submissions of dumps (JSON lines) into the index; yields the number read now and then.

        Raises:
            InputError: a file that cannot be read; and, unless `bad` does something else with it, a record that is
                neither a comment nor a submission.
        """
        rows, count = [], 0
        for file in files:
            for where, record in iter_records(file, format="jsonl", bad=bad):
                count += 1
                try:
                    rows.append(self._build_row(record, where))
                except SkippedComment as reason:
                    self.left_out[str(reason)] += 1
                except InputError as error:
                    bad(error)
                if len(rows) >= INSERTED_ROWS:
                    self._add(rows)
                    rows = []
                    yield count
        self._add(rows)
        yield count

    def iter_replies(self, *, history: int) -> Iterator[Comment]:
        """Yields each reply to a kept text, with the last `history` texts of its path, without itself."""
        cursor = self._rows.execute("SELECT thread, number, parent, text FROM texts ORDER BY thread, number")
        for thread, rows in groupby(cursor, key=itemgetter(0)):
            texts = {number: (parent, text) for _, number, parent, text in rows}
            self.num_texts += len(texts)
            for number, (parent, text) in texts.items():
                path, ancestor = [number], parent
                while ancestor in texts and ancestor not in path and len(path) <= history:
                    path.append(ancestor)
                    ancestor = texts[ancestor][0]
                if len(path) > 1:
                    yield Comment([texts[number][1] for number in path[:0:-1]], text, thread)

    def _build_row(self, record: Mapping[str, Any], where: str) -> tuple[int, int, int | None, str]:
        if "body" in record:
            thread, number = _parse_id(record, "link_id", where, kinds=("t3_",))[1], _parse_id(record, "id", where)[1]
            kind, parent_number = _parse_id(record, "parent_id", where, kinds=("t1_", "t3_"))
            parent: int | None = ROOT if kind == "t3_" else parent_number
            if parent == number:
                raise InputError(f"{where}: the comment {record['id']!r} is its own parent")
        elif "title" in record:
            thread, number, parent = _parse_id(record, "id", where)[1], ROOT, None
        else:
            raise InputError(f"{where}: is neither a comment, with a 'body', nor a submission, with a 'title'")
        return thread, number, parent, self._filters.read_text(record)

    def _add(self, rows: Sequence[tuple[int, int, int | None, str]]) -> None:
        try:
            self._rows.execute("BEGIN")
            self._rows.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", rows)
            self._rows.execute("COMMIT")
        except sqlite3.OperationalError as error:  # a full disk
            raise InputError(f"{self.path}: cannot be written ({error}); make room") from None


def _parse_id(record: Mapping[str, Any], name: str, where: str, *, kinds: Sequence[str] = ("",)) -> tuple[str, int]:
    """The kind of a Reddit id, `t1_` or `t3_`, and its number, which is in base 36."""
    value = record.get(name)
    kind, number = "t1_", -1
    if isinstance(value, str):
        kind = next((kind for kind in kinds if value.startswith(kind)), "?")
        if _ID.fullmatch(digits := value.removeprefix(kind)):
            number = int(digits, 36)
    elif isinstance(value, int) and not isinstance(value, bool):  # as older dumps name a parent
        number = value
    if kind in kinds and 0 <= number <= _LARGEST:
        return kind, number
    expected = " or ".join(f"{kind}... ({_KINDS[kind]})" for kind in kinds if kind) or "a number in base 36"
    raise InputError(f"{where}: {name!r} is {value!r:.40}; it must be {expected}")
