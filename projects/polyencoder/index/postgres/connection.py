"""Connections to PostgreSQL: addresses, snapshot transactions, time limits, one-line errors.

Only this module and `table` use psycopg.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from polyencoder.errors import ConfigError, NoAnswerError, PolyencoderError, get_first_line
from polyencoder.packages import require

SCHEMES = ("postgres", "postgresql")
"""Prefixes of a database's address."""

T = TypeVar("T")

_DEFAULT_NAME = "polyencoder"
_CONNECT_SECONDS, _ANSWER_SECONDS, _LOCK_SECONDS = 10, 60, 30
_AWAY = "no connection to the index's server; is it running?"


def is_postgres(where: object) -> bool:
    """Whether it is the address of an index in PostgreSQL."""
    return str(where).startswith(tuple(f"{scheme}:" for scheme in SCHEMES))


def _parse(where: str) -> tuple[dict[str, Any], str, str]:
    """libpq's parameters of a URL, its table, and the URL without its password. ConfigError, which quotes no URL."""
    psycopg = require("psycopg", extra="postgres")
    conninfo = require("psycopg.conninfo", extra="postgres")
    url, _, name = where.rpartition("#") if re.search(r"#[^@/#]*$", where) else (where, "", "")
    right = "write postgres://USER@HOST:PORT/DATABASE#NAME, with special characters percent-encoded"
    try:
        if "://" not in url:
            raise ValueError
        parameters = conninfo.conninfo_to_dict(url)
    except (psycopg.Error, ValueError):
        raise ConfigError(f"libpq cannot read the address of the index in PostgreSQL; {right}") from None
    user, host, port, database = (parameters.get(key, "") for key in ("user", "host", "port", "dbname"))
    if not re.fullmatch(r"[\d,]*", str(port), re.ASCII):  # perhaps a part of a password that has a /
        raise ConfigError(f"the port of the address of the index in PostgreSQL is not a number; {right}")
    address = f"postgres://{user + '@' if user else ''}{host}{f':{port}' if port else ''}/{database}"
    name = name or _DEFAULT_NAME
    if not re.fullmatch(r"[A-Za-z_]\w{0,62}", name, re.ASCII):
        what = "use letters, digits and _, up to 63 of them, as in #replies"
        raise ConfigError(f"{address}: {name!r} cannot name a table; {what}")
    return parameters, name, f"{address}#{name}"


class PostgresSession:
    """A connection with a time limit for each statement, as a hanging server does not answer."""

    def __init__(self, connect: Callable[[], Any], *, seconds: float) -> None:
        self.connection = connect()
        self.seconds = seconds
        self.late = False
        """Whether a statement exceeded the time limit, which closed the connection."""
        self._connect = connect
        self._psycopg: Any = require("psycopg", extra="postgres")

    def ask(self, query: Any, values: Any = None, *, limited: bool = True) -> list[tuple[Any, ...]]:
        """Executes a statement; returns rows in binary formats. An unlimited one may last while the server answers."""
        with self._watch(limited=limited), self.connection.cursor(binary=True) as cursor:
            cursor.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def copy(self, query: Any, rows: Iterable[tuple[bytes | None, ...]]) -> None:
        """Inserts rows by COPY, each field in PostgreSQL's binary format."""
        with self._watch(), self.connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)

    def set(self, settings: Mapping[str, object]) -> None:
        """Changes settings of the server until the transaction ends."""
        for name, value in settings.items():
            self.ask("SELECT set_config(%s, %s, true)", (name, str(value)))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A read-only transaction on a snapshot."""
        self.ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not self.connection.closed:
                self.ask("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a savepoint inside one; an error rolls it back."""
        transaction = self.connection.transaction()

        def leave(*error: Any) -> None:
            if error[0] is None and self.connection.closed:  # psycopg raises nothing
                raise self._psycopg.Error("the connection is lost, and what it had not committed")
            with self._watch():
                transaction.__exit__(*error)

        with self._watch():
            transaction.__enter__()
        with ExitStack() as stack:
            stack.push(leave)
            yield

    @contextmanager
    def _watch(self, *, limited: bool = True) -> Iterator[None]:
        """Closes the connection at the time limit or, without one, once the server answers nobody."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(self.seconds):
                if (limited or not self._is_answering()) and not over.is_set():
                    self.late = True
                    with suppress(OSError, self._psycopg.Error):
                        wire = socket.socket(fileno=os.dup(self.connection.fileno()))
                        with wire:
                            return wire.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _is_answering(self) -> bool:
        """Whether the server answers a new connection in time, if only to refuse it."""
        try:
            session = PostgresSession(self._connect, seconds=self.seconds)
        except self._psycopg.Error as error:
            return not isinstance(error, self._psycopg.errors.ConnectionTimeout)
        with closing(session.connection), suppress(self._psycopg.Error):
            session.ask("SELECT 1")
        return not session.late


class Server:
    """A database with a pool of connections for the threads of this process."""

    def __init__(self, where: str) -> None:
        """Does not connect yet. ConfigError for an invalid address."""
        self._psycopg: Any = require("psycopg", extra="postgres")
        self.parameters, self.name, self.where = _parse(where)
        self.seconds: float = _ANSWER_SECONDS
        self._idle: list[PostgresSession] = []

    def close(self) -> None:
        while (session := self._take_waiting()) is not None:
            session.connection.close()

    def _take_waiting(self) -> PostgresSession | None:
        """An idle connection."""
        with suppress(IndexError):  # another thread may have taken the last one
            return self._idle.pop()
        return None

    def read(self, ask: Callable[[PostgresSession], T]) -> T:
        """Calls `ask` with a snapshot of the database, and returns its result. Replaces a lost connection."""
        while True:
            waiting = self._take_waiting()
            session, reused = waiting or self._connect(), waiting is not None
            try:
                with session.snapshot():
                    session.set({"jit": "off", "statement_timeout": f"{self.seconds:g}s"})
                    result = ask(session)
            except self._psycopg.Error as error:
                if session.connection.closed and reused and not session.late:
                    self.close()
                    continue
                raise self._explain(error, session) from None
            finally:
                if session.connection.closed or session.late:
                    session.connection.close()
                else:
                    self._idle.append(session)
            return result

    @contextmanager
    def changing(self) -> Iterator[PostgresSession]:
        """An exclusive transaction among all changes of this index; rolled back after an error."""
        session = self._connect(reads=False)
        with closing(session.connection), self.step(session):
            session.set({"lock_timeout": f"{_LOCK_SECONDS}s", "statement_timeout": 0, "jit": "off"})
            session.set({"idle_in_transaction_session_timeout": 0})  # long enough to encode new texts
            session.ask("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"polyencoder {self.name}",))
            yield session

    @contextmanager
    def step(self, session: PostgresSession) -> Iterator[None]:
        """A part of a change: an error rolls back this part alone, and is explained, as others may follow."""
        try:
            with session.transaction():
                yield
        except self._psycopg.Error as error:
            raise self._explain(error, session) from None

    def _connect(self, *, reads: bool = True) -> PostgresSession:
        parameters = {
            "connect_timeout": _CONNECT_SECONDS,
            "fallback_application_name": "polyencoder",
            "keepalives_idle": _CONNECT_SECONDS,  # detects a lost server while an index is built, too
        } | self.parameters
        connect = partial(self._psycopg.connect, **parameters, autocommit=True, prepare_threshold=None)
        try:
            return PostgresSession(connect, seconds=self.seconds if reads else max(self.seconds, 2 * _LOCK_SECONDS))
        except self._psycopg.Error as error:
            kind = PolyencoderError if self._is_refused(error, parameters) else NoAnswerError
            what = "is the server running, are the address and, in the environment, PGPASSWORD right?"
            raise kind(f"{self.where}: no connection ({get_first_line(error)}); {what}", public=_AWAY) from error

    def _is_refused(self, error: Exception, parameters: Mapping[str, Any]) -> bool:
        """Whether the server accepts connections, but not this one, or libpq cannot read the parameters."""
        if isinstance(error, self._psycopg.errors.ConnectionTimeout):
            return False
        pq, conninfo = require("psycopg.pq", extra="postgres"), require("psycopg.conninfo", extra="postgres")
        status = pq.PGconn.ping(conninfo.make_conninfo(**parameters).encode())
        return status in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)

    def _explain(self, error: Exception, session: PostgresSession) -> PolyencoderError:
        errors, reason = self._psycopg.errors, get_first_line(error)
        if session.late or isinstance(error, errors.QueryCanceled):
            return NoAnswerError(f"PostgreSQL has not answered within {session.seconds:g} seconds", where=self.where)
        if isinstance(error, errors.LockNotAvailable):
            what = f"another process has been changing it for {_LOCK_SECONDS} seconds; try again later"
            return PolyencoderError(what, where=self.where)
        lost = session.connection.closed
        kind = NoAnswerError if lost else PolyencoderError
        what = "PostgreSQL does not answer; is the server still running?" if lost else "PostgreSQL refused the request"
        return kind(f"{self.where}: {what} ({reason})", public=what)
