"""Handles records that cannot be used: raises the error, or counts it and continues; logs what is left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from polyencoder.errors import InputError

_log = logging.getLogger(__name__)

OnBad: TypeAlias = Callable[[InputError], None]
"""Called with the error of each record that cannot be used; when it returns, the reader continues with the next one."""


def raise_it(error: InputError) -> None:
    """Raises the error: the default of every reader, which stops at the first bad record."""
    raise error from None


class BadExamples:
    """Counts invalid records and keeps the `first` error: `iter_records(path, bad=BadExamples(skip=True))`.

    A record counts once, however often its file is read. skip: continue with the next record; otherwise the first bad
    one raises its error.
    """

    def __init__(self, *, skip: bool = False, argument: str = "skip_bad_examples") -> None:
        self.skip = skip
        self._argument = argument
        self.first: str | None = None
        self._seen: set[int] = set()

    @property
    def count(self) -> int:
        return len(self._seen)

    def __call__(self, error: InputError) -> None:
        self._seen.add(hash(str(error)))  # which names its file and line
        self.first = self.first or str(error)
        if not self.skip:
            error.argument = error.argument or self._argument
            raise_it(error)

    def summarize(self) -> str | None:
        """One line for the log: the number of skipped records and the first error; None without any."""
        if not self.count:
            return None
        what = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{what} left out; the first: {self.first}"


@cache
def log_once(level: int, message: str) -> None:
    """Logs a message about a file, once however often the file is read."""
    _log.log(level, message)


def log_system_messages(name: str, count: int) -> None:
    """Warns that system messages were left out."""
    log_once(logging.WARNING, f"{name}: {count:,} system messages were left out (system 'persona' reads them)")
