"""Caches a teacher's scores in one SQLite file, which runs and processes may share."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from polyencoder.errors import CheckpointError, get_first_line

FORMAT_VERSION = 1
_APPLICATION = 0x706F6C79  # "poly": the file's kind in SQLite's header
_AT_ONCE = 10_000  # keys of a query; SQLite allows 32,766
_BUSY_SECONDS = 60


class ScoreCache:
    """Scores by key, a 16-byte digest of model, context and candidate, in a file or, without a path, in memory.

    `put` is a transaction, which survives a kill. CheckpointError if the file is damaged, of another format or a newer
    version, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = path
        with self._explaining_errors():
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                ":memory:" if path is None else os.fspath(path), isolation_level=None, timeout=_BUSY_SECONDS
            )
            # the table first: another process may be creating the file, its header and table at once
            ((tables,),) = self._connection.execute("SELECT COUNT(*) FROM sqlite_master")
            ((application,),) = self._connection.execute("PRAGMA application_id")
            ((version,),) = self._connection.execute("PRAGMA user_version")
            if tables and (application, version) != (_APPLICATION, FORMAT_VERSION):
                raise CheckpointError(
                    f"{path}: not a cache of teacher's scores of format {FORMAT_VERSION}: remove it, or give another"
                )
            if not tables:
                self._connection.executescript(
                    f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORMAT_VERSION};"
                    "CREATE TABLE IF NOT EXISTS scores(key BLOB PRIMARY KEY, score REAL NOT NULL) WITHOUT ROWID; COMMIT"
                )

    def __len__(self) -> int:
        with self._explaining_errors():
            ((count,),) = self._connection.execute("SELECT COUNT(*) FROM scores")
        return int(count)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The cached scores of these keys."""
        scores: dict[bytes, float] = {}
        with self._explaining_errors():
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                scores.update(self._connection.execute(f"SELECT key, score FROM scores WHERE key IN ({marks})", part))
        return scores

    def put(self, scores: Mapping[bytes, float]) -> None:
        """Caches scores; existing keys are unchanged."""
        with self._explaining_errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?)", scores.items())

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CheckpointError(
                f"{self._path}: teacher's scores cannot be read or written ({get_first_line(error)}): make room if the "
                "disk is full; if the file is damaged, remove it, or give another"
            ) from error
