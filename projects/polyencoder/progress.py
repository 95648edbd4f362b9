"""Progress on standard error: a bar in a terminal, lines elsewhere, as a log file would keep each state of a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from tqdm import tqdm

EVERY = 10.0  # seconds between two lines


def create_progress(
    items: Iterable[Any] | None = None,
    *,
    step: str,
    unit: str,
    show: bool | None,
    total: int | None = None,
    done: int = 0,
) -> tqdm[Any] | ProgressLines:
    """A bar or lines over `items`, or one that its `update` advances.

    Args:
        step: what is done, such as `encoding`.
        unit: of items, such as `texts`.
        show: False for neither; None for lines only if it takes longer than `EVERY` seconds.
        total: the number of items, if it is known.
        done: how many of them were done before.
    """
    if show is False or not sys.stderr.isatty():
        every = float("inf") if show is False else EVERY
        return ProgressLines(items, step, unit, total, n=done, ends_with_line=show is True, every=every)
    from tqdm import tqdm  # here: its lock is shared by forked processes, and stays locked when one of them is killed

    unit = unit if unit == "B" else f" {unit}"
    options = {"desc": step, "unit": unit, "unit_scale": True, "total": total, "initial": done, "dynamic_ncols": True}
    return tqdm(items, **options)


@dataclass(eq=False)
class ProgressLines:
    """Writes a line every few seconds and, after such lines or if it `ends_with_line`, a last line."""

    items: Iterable[Any] | None
    step: str
    unit: str
    total: int | None
    n: int
    """The items that are done."""
    ends_with_line: bool
    every: float

    def __post_init__(self) -> None:
        self._first, self._written = self.n, -1
        self._started = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in self.items or ():
                yield item
                self.update(1)

    def update(self, count: int = 1) -> None:
        """Adds items that are done."""
        self.n += count
        if time.monotonic() - self._last >= self.every:
            self.ends_with_line = True
            self._write()

    def close(self) -> None:
        """Writes the last line."""
        if self.ends_with_line and self.n != self._written:
            self._write()

    def _write(self) -> None:
        self._last, self._written = time.monotonic(), self.n
        rate = (self.n - self._first) / max(self._last - self._started, 1e-9)
        parts = [f"{self.n:,} {self.unit}"]
        if self.total:
            parts = [f"{self.n / self.total:4.0%}", f"{self.n:,} of {self.total:,} {self.unit}"]
        parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{rate:.1g}/s")
        if self.total and rate and self.n < self.total:
            left = (self.total - self.n) / rate
            parts.append(f"{left // 60:.0f}:{left % 60:02.0f} left")
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self.step}: {', '.join(parts)}\n")
        sys.stderr.flush()
