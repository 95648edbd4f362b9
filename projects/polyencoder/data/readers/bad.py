"""What to do with a record that cannot be used: stop with its error, or count it and go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from polyencoder.errors import InputError

__all__ = ["BadExamples", "CountedOnce", "OnBad", "raise_it"]

OnBad: TypeAlias = Callable[[InputError], None]
"""Called with the error of each record that cannot be used; when it returns, the reader goes on with the next one."""


def raise_it(error: InputError) -> None:
    """The default of every reader: the first bad record ends the reading."""
    raise error from None


class BadExamples:
    """Counts the records that cannot be used, and remembers the first: `records(path, bad=BadExamples(skip=True))`.

    Attributes:
        skip: go on with the next record; otherwise the first bad one raises its error.
        count: how many there were.
        first: what was wrong with the first; None while there is none.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.count = 0
        self.first: str | None = None

    def __call__(self, error: InputError) -> None:
        self.count += 1
        if self.first is None:
            self.first = str(error)
        if not self.skip:
            raise_it(error)

    def summary(self) -> str | None:
        """One line for a log: how many were left out, and what was wrong with the first; None when all were good."""
        if not self.count:
            return None
        what = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{what} left out; the first: {self.first}"


class CountedOnce(BadExamples):
    """Counts a bad example once, however often its file is read: in every epoch, and for its labels."""

    def __init__(self, *, skip: bool) -> None:
        super().__init__(skip=skip)
        self._known: set[int] = set()

    def __call__(self, error: InputError) -> None:
        place = hash(str(error))
        if not self.skip or place not in self._known:
            self._known.add(place)
            super().__call__(error)
