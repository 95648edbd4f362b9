"""Handles records that cannot be used: raises the error, or counts it and continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from polyencoder.errors import InputError

OnBad: TypeAlias = Callable[[InputError], None]
"""Called with the error of each record that cannot be used; when it returns, the reader continues with the next one."""


def raise_it(error: InputError) -> None:
    """Raises the error: the default of every reader, which stops at the first bad record."""
    raise error from None


class BadExamples:
    """Counts invalid records and keeps the first error: `records(path, bad=BadExamples(skip=True))`.

    A record counts once, however often its file is read: in every epoch, and for its labels.

    Attributes:
        skip: continue with the next record; otherwise the first bad one raises its error.
        count: how many there were.
        first: the first error; None without any.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.first: str | None = None
        self._known: set[int] = set()

    @property
    def count(self) -> int:
        return len(self._known)

    def __call__(self, error: InputError) -> None:
        self._known.add(hash(str(error)))  # which names its file and line
        self.first = self.first or str(error)
        if not self.skip:
            raise_it(error)

    def summary(self) -> str | None:
        """One line for the log: the number of skipped records and the first error; None without any."""
        if not self.count:
            return None
        what = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{what} left out; the first: {self.first}"
