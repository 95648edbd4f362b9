"""Seeded random choices, equal on all platforms and Python versions.

The standard library promises this of `Random.random()` alone: `choice`, `sample` and `shuffle` have changed before and
may change again. A generated data set and its published scores must not, so everything here is made from `random()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from random import Random
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A random generator seeded by a key. Equal keys give equal choices; a key is any text, such as `"7:valid:12"`."""

    def __init__(self, key: str) -> None:
        self._key = key

    @cached_property
    def _random(self) -> Callable[[], float]:
        return Random(self._key).random  # a text seed is hashed with SHA-512, untouched by PYTHONHASHSEED

    def draw_below(self, n: int) -> int:
        """Draws a whole number in [0, n)."""
        return int(self._random() * n)

    def draw_chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, items: Sequence[T]) -> T:
        return items[self.draw_below(len(items))]

    def iter_order(self, n: int) -> Iterator[int]:
        """Yields the numbers below n in random order; the first k cost O(k), however large n is."""
        moved: dict[int, int] = {}  # Fisher-Yates on an array; only its changed positions are stored
        for here in range(n):
            drawn = here + self.draw_below(n - here)
            value = moved.pop(here, here)
            if drawn != here:
                moved[drawn], value = value, moved.get(drawn, drawn)
            yield value

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Draws k different items in random order, or all if there are fewer."""
        return [items[position] for position in islice(self.iter_order(len(items)), k)]

    def shuffle_buffered(self, items: Sequence[T]) -> list[T]:
        return self.sample(items, len(items))


def shuffle_buffered(items: Iterable[T], *, size: int, rng: SeededRandom) -> Iterator[T]:
    """Shuffles items with a buffer of `size`.

    The buffer grows while it is used, two in and one out, so that the first item does not wait for a full one.
    """
    buffer: list[T] = []
    for number, item in enumerate(items):
        buffer.append(item)
        if len(buffer) >= size or number % 2:
            idx = rng.draw_below(len(buffer))
            buffer[idx], buffer[-1] = buffer[-1], buffer[idx]
            yield buffer.pop()
    yield from rng.shuffle_buffered(buffer)
