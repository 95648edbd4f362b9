"""Chat sessions: a SQLite file that all workers share, limited in number and age."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from polyencoder.errors import ConfigError, PolyencoderError, first_line

_TABLE = """
CREATE TABLE IF NOT EXISTS sessions(
    id TEXT PRIMARY KEY, persona TEXT NOT NULL, turns TEXT NOT NULL, version INTEGER NOT NULL, used REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS sessions_by_age ON sessions(used);
"""
_BUSY_SECONDS = 5.0


class NoSession(PolyencoderError):
    """The session does not exist, or has expired."""


class SessionBusy(PolyencoderError):
    """The session has changed since its turns were read."""


class Session(NamedTuple):
    """A dialogue."""

    id: str
    persona: list[str]
    turns: list[str]
    """Oldest first, alternating user and server."""
    version: int = 0
    """The number of exchanges; 0 if it is not stored yet."""

    def context(self, message: str, *, most_characters: int) -> list[str]:
        """The turns of a context: persona, dialogue, the new message. Old turns that do not fit are dropped."""
        room = most_characters - len(message) - sum(map(len, self.persona))
        kept: list[str] = []
        for turn in reversed(self.turns):
            room -= len(turn)
            if room < 0:
                break
            kept.append(turn)
        return [*self.persona, *reversed(kept), message]


class Sessions:
    """Stores sessions in a file, each for `seconds` after its last use.

    Args:
        path: the file, created if missing.
        most: maximum sessions; a new one replaces the least recently used.
        seconds: after which an unused session expires.
        most_turns, most_characters: of one session; older turns are dropped, the last two never.

    All methods raise PolyencoderError if the file cannot be read or written, for instance on a full disk.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        most: int,
        seconds: float,
        most_turns: int = 200,
        most_characters: int = 50_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._most = most
        self._seconds = seconds
        self._most_turns = most_turns
        self._most_characters = most_characters
        self._clock = clock
        try:
            with self._connected() as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_TABLE)
        except PolyencoderError as error:
            raise ConfigError(
                f"{path}: is not a file of sessions, or cannot be written ({first_line(error.__cause__ or error)}): "
                "make room if its disk is full, or give another file",
                argument="sessions",
            ) from None

    def new(self, persona: list[str]) -> Session:
        """Creates a session, which `add_turns` stores."""
        return Session(uuid.uuid4().hex, persona, [])

    def read(self, id_: str) -> Session:
        """Reads the session of this id. NoSession if there is none, or it has expired."""
        with self._connected() as connection:
            row = connection.execute(
                "SELECT persona, turns, version FROM sessions WHERE id = ? AND used > ?",
                (id_, self._clock() - self._seconds),
            ).fetchone()
        if row is None:
            raise NoSession("the session does not exist or has expired: begin another")
        return Session(id_, json.loads(row[0]), json.loads(row[1]), row[2])

    def add_turns(self, session: Session, message: str, reply: str) -> None:
        """Stores a turn of each side. SessionBusy if the session has changed since it was read."""
        kept = [*session.turns, message, reply][-self._most_turns :]
        while len(kept) > 2 and sum(map(len, kept)) > self._most_characters:
            del kept[:2]
        turns = json.dumps(kept)
        now = self._clock()
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if session.version == 0:
                done = connection.execute(
                    "INSERT INTO sessions VALUES (?, ?, ?, 1, ?)", (session.id, json.dumps(session.persona), turns, now)
                )
            else:
                done = connection.execute(
                    "UPDATE sessions SET turns = ?, version = version + 1, used = ? WHERE id = ? AND version = ?",
                    (turns, now, session.id, session.version),
                )
            if done.rowcount == 0:
                raise SessionBusy("another message changed this session in the meantime: send it again")
            connection.execute("DELETE FROM sessions WHERE used <= ?", (now - self._seconds,))
            connection.execute(
                "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions ORDER BY used DESC LIMIT -1 OFFSET ?)",
                (self._most,),
            )

    def __len__(self) -> int:
        with self._connected() as connection:
            ((count,),) = connection.execute("SELECT COUNT(*) FROM sessions")
        return int(count)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Opens a connection for one transaction, which is rolled back after an error."""
        try:
            with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise PolyencoderError(f"sessions cannot be stored now ({first_line(error)}): try again") from error
