"""`index.sqlite`: the database of an index folder. One transaction is one change of the index.

The database names the files of vectors and of FAISS, which never change. A change writes new files, syncs them to disk,
and names them in the transaction that enters its texts: a kill at any moment leaves the state before or after the
transaction. In SQLite's WAL mode each reader has a snapshot; readers and the writer do not wait for each other.

An index may be untrusted. SQLite replays a rollback journal beside a database, and deletes the file that it names; our
databases never have one, so a folder with one is refused. A folder that is read-only, or has no room for what SQLite
puts beside a database, is opened as immutable.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from polyencoder.errors import CheckpointError, get_first_line
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.files import DATABASE, UNFINISHED
from polyencoder.index.folder.schema import check_tables, create_tables

T = TypeVar("T")

_CACHE_KB = 64 << 10  # of the writer; the many readers have SQLite's default
_BUSY_SECONDS = 30  # only during SQLite's recovery or checkpoints


class _Reader(NamedTuple):
    connection: sqlite3.Connection
    stamp: tuple[int, ...] | None
    """Identity of the open file, which may have been replaced."""
    content: tuple[int, ...] | None
    """Time and size of a file opened as immutable: without locks, readers must detect changes."""


class Database:
    """The database of a finished index, for any number of threads to read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / DATABASE
        self._idle: list[_Reader] = []
        weakref.finalize(self, _close, self._idle)
        _DATABASES.add(self)

    @contextmanager
    def snapshot(self) -> Iterator[Catalogue]:
        """A snapshot of the last commit, until the block ends. CheckpointError for a missing or damaged index."""
        reader = self._take_reader()
        try:
            reader.connection.execute("BEGIN")
            reader.connection.execute("SELECT 1 FROM description")  # the snapshot begins with the first read
            yield Catalogue(reader.connection, self._folder)
            if reader.content is not None and reader.content != _read_content(self._path):
                raise CheckpointError(f"{self._path}: was changed during a read")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # of a damaged text
            raise _explain_error(self._path, error) from error
        finally:
            self._give_back(reader)

    def read(self, ask: Callable[[Catalogue], T]) -> T:
        """Calls `ask` with a snapshot of the last commit, and returns its result.

        Raises CheckpointError as `snapshot` and `ask` do; but repeats the call if the state is outdated and another
        process has removed its files.
        """
        while True:
            text = None
            try:
                with self.snapshot() as catalogue:
                    text = catalogue.read_description()
                    return ask(catalogue)
            except CheckpointError:
                with self.snapshot() as catalogue:
                    if text is None or text == catalogue.read_description():
                        raise

    def close(self) -> None:
        """Closes the idle connections."""
        _close(self._idle)

    def _take_reader(self) -> _Reader:
        """An idle connection to the file now at the path, or to the last one there."""
        stamp = _read_stamp(self._path)
        while True:
            try:
                reader = self._idle.pop()
            except IndexError:
                break
            if stamp is None or reader.stamp == stamp:
                return reader
            reader.connection.close()
        if stamp is None:
            raise _explain_missing(self._folder)
        return _open_to_read(self._path, stamp)  # of a newer file: not reused

    def _give_back(self, reader: _Reader) -> None:
        with suppress(sqlite3.Error):
            reader.connection.execute("ROLLBACK")
            if reader.content is None and not reader.connection.in_transaction:
                self._idle.append(reader)
                return
        reader.connection.close()


def check_exists(folder: Path) -> None:
    """Raises CheckpointError if there is no finished index."""
    if _read_stamp(folder / DATABASE) is None:
        raise _explain_missing(folder)


def connect(path: Path, how: str = "mode=rw") -> sqlite3.Connection:
    """Opens a database, by default for changes. Raises CheckpointError if there is a foreign journal."""
    path = path.resolve()
    for name in (f"{path}-journal", f"{path}-wal", f"{path}-shm"):
        if os.path.islink(name) or (name.endswith("-journal") and os.path.exists(name)):
            raise CheckpointError(
                f"{name}: an index never has such a file, which could make SQLite delete or change others; do not "
                "use this index unless you trust its source, and then without that file"
            )
    connection = sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,  # explicit transactions
        check_same_thread=False,
    )
    if how == "mode=rw":
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def connect_to_fill(path: Path, *, words: bool = False) -> sqlite3.Connection:
    """Opens a new database, unsafe until `PRAGMA journal_mode = WAL`. ConfigError for `words` without FTS5."""
    connection = connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    create_tables(connection, words=words)
    return connection


def _open_to_read(path: Path, stamp: tuple[int, ...]) -> _Reader:
    immutable = _is_at_rest(path) and not os.access(path.resolve().parent, os.W_OK)  # there is no writer
    try:
        try:
            return _connect_reader(path, stamp, immutable=immutable)
        except sqlite3.OperationalError:  # a full disk has no room for an index of the log
            if immutable or not _is_at_rest(path):
                raise
            return _connect_reader(path, stamp, immutable=True)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of a damaged text
        raise _explain_error(path, error) from error


def _connect_reader(path: Path, stamp: tuple[int, ...], *, immutable: bool) -> _Reader:
    content = _read_content(path) if immutable else None
    connection = connect(path, "mode=ro&immutable=1" if immutable else "mode=ro")
    try:
        check_tables(connection, path.parent)
    except BaseException:
        connection.close()
        raise
    return _Reader(connection, stamp, content)


def _is_at_rest(path: Path) -> bool:
    """Whether the file has all commits, and none is in the log."""
    try:
        return os.stat(f"{path.resolve()}-wal").st_size == 0
    except FileNotFoundError:  # looked up once: the last process to close the database removes it
        return True


def _explain_error(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, sqlite3.OperationalError):  # the disk, or another process; the index may be whole
        why = "cannot be read"
        todo = "if its disk is full or read-only, make room or copy the folder elsewhere; else build the index again"
    else:
        why, todo = "damaged or not readable", "build the index again"
    return CheckpointError(f"{path}: {why} ({get_first_line(error)}); {todo}")


def _read_stamp(path: Path) -> tuple[int, ...] | None:
    """Identifies the file at the path; None if it does not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({get_first_line(error)})") from None
    return status.st_dev, status.st_ino


def _read_content(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _close(readers: list[_Reader]) -> None:
    with suppress(IndexError):  # until the pool is empty; other threads use it too
        while True:
            readers.pop().connection.close()


def _close_all() -> None:
    for database in list(_DATABASES):
        database.close()


def _explain_missing(folder: Path) -> CheckpointError:
    if (folder / UNFINISHED).is_file():
        what = "this index is not finished; run the same command again, and it resumes"
    else:
        what = f"no index (no {DATABASE} in it); make one with `Ranker.index` or `polyencoder index`"
    return CheckpointError(f"{folder}: {what}")


_DATABASES: weakref.WeakSet[Database] = weakref.WeakSet()
# SQLite's locks belong to a process: a fork must not inherit a connection
os.register_at_fork(before=_close_all)
