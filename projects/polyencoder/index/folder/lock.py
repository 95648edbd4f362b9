"""Who changes or builds an index has its lock, and errors of the disk become one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import filelock

from polyencoder.errors import InputError, first_line
from polyencoder.index.folder.names import LOCK

__all__ = ["IndexBusy", "explained", "locked"]

_BUSY_SECONDS = 30


class IndexBusy(InputError):
    """Another process is changing the index, and has been for a while."""


@contextmanager
def locked(folder: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Hold the right to change or build an index: one at a time has it, until the block or the process ends.

    Raises IndexBusy if another keeps it for `seconds`, half a minute by default.
    """
    lock = filelock.FileLock(folder / LOCK, timeout=_BUSY_SECONDS if seconds is None else seconds)
    try:
        with explained(folder):
            lock.acquire()
    except filelock.Timeout:
        raise IndexBusy(f"{folder}: cannot be changed now; is another process at it?") from None
    try:
        yield
    finally:
        lock.release()


class explained:  # a class, since generators cost more where each of many millions of records has one
    """Make errors of the disk in the block ours, a full one above all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, (OSError, sqlite3.Error)) and not isinstance(error, filelock.Timeout):
            raise InputError(
                f"{self._folder}: cannot be written ({first_line(error)}); mend that and run the same command again: "
                "it goes on from there"
            ) from error
