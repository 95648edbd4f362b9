"""Sources of examples, in memory or streamed, with seeded epochs sharded among readers.

An epoch's order depends on its number and the seed alone: every reader, in any process, sees the same order and takes
every n-th item, so that together they take each item exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from polyencoder.data.readers import DataFile, open_bytes
from polyencoder.data.seeded_random import SeededRandom, shuffle_buffered

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SAMPLE = 2000  # minimum number of items to estimate a file's number of items from
LONG = 1 << 19  # bytes on disk that are read at least: much more than the pieces that decompressors ask for
FILES = 16  # sampled files of a kind


@dataclass(frozen=True)
class Reader:
    """A shard of the data, for one of `count` readers: processes of distributed training, or background workers."""

    number: int = 0
    count: int = 1

    def take_share(self, items: Iterator[T]) -> Iterator[T]:
        """This reader's share: every `count`-th item."""
        return islice(items, self.number, None, self.count)


ALONE = Reader()


class Counts(NamedTuple):
    """The number of items of a source, and of examples in them."""

    items: int
    examples: int


class Source(Protocol[T_co]):
    """A source of items (examples, or dialogues of several), in memory or read from files in each epoch."""

    def iter_items(self, rng: SeededRandom | None = None, *, reader: Reader = ALONE) -> Iterator[T_co]:
        """A reader's items of one epoch: in order without rng, else shuffled."""
        ...

    def count_items(self) -> Counts:
        """The number of items and examples, possibly estimated."""
        ...


class InMemory(Generic[T]):
    """Items in memory; an epoch is a permutation of them. `size` gives an item's number of examples."""

    def __init__(self, items: Iterator[T] | Sequence[T], *, size: Callable[[T], int] = lambda _: 1) -> None:
        self._items = items if isinstance(items, Sequence) else list(items)
        self.count_items = cache(lambda: Counts(len(self._items), sum(map(size, self._items))))

    def iter_items(self, rng: SeededRandom | None = None, *, reader: Reader = ALONE) -> Iterator[T]:
        if rng is None:
            return reader.take_share(iter(self._items))
        return reader.take_share(self._items[position] for position in rng.iter_order(len(self._items)))


class Streamed(Generic[T]):
    """Files read in each epoch, in random order, through a shuffling buffer of at most `buffer` items.

    Every reader reads all files and keeps its share. The number of items is estimated on demand.
    """

    def __init__(
        self, read: Callable[[str], Iterator[T]], files: Sequence[str], *, buffer: int, estimate: Callable[[], Counts]
    ) -> None:
        self._read, self._files, self._buffer = read, files, buffer
        self.count_items = cache(estimate)

    def iter_items(self, rng: SeededRandom | None = None, *, reader: Reader = ALONE) -> Iterator[T]:
        files = self._files if rng is None else rng.shuffle_buffered(self._files)
        items = reader.take_share(item for file in files for item in self._read(file))
        return items if rng is None else shuffle_buffered(items, size=self._buffer, rng=rng)


def iter_endless(source: Source[T], *, seed: int, reader: Reader = ALONE, seen: int = 0) -> Iterator[T]:
    """A reader's items of consecutive epochs, after the first `seen`; ends if an epoch has none for it."""
    epoch = 0
    while True:
        length = 0
        for length, item in enumerate(source.iter_items(SeededRandom(f"{seed}:epoch {epoch}"), reader=reader), start=1):
            if length > seen:
                yield item
        if not length:
            return
        epochs = max(1, seen // length)  # of equal length: completed ones need not be read
        epoch, seen = epoch + epochs, max(0, seen - epochs * length)


def estimate_counts(read: Callable[[DataFile], Iterator[Sized]], files: Sequence[str]) -> Counts:
    """Estimates the number of items in files by the beginnings of `FILES` of each suffix; exact for small files."""
    kinds: dict[str, list[str]] = {}
    for path in files:
        kinds.setdefault(Path(path).suffix.lower(), []).append(path)
    items = examples = 0.0
    for paths in kinds.values():
        chosen = paths[:: -(-len(paths) // FILES)]
        estimates = [_estimate_counts(read, path) for path in chosen]
        scale = sum(map(os.path.getsize, paths)) / max(1, sum(map(os.path.getsize, chosen)))
        items += scale * sum(count for count, _ in estimates)
        examples += scale * sum(count for _, count in estimates)
    return Counts(round(items), round(examples))


def _estimate_counts(read: Callable[[DataFile], Iterator[Sized]], path: str) -> tuple[float, float]:
    """Estimates the number of items and examples in a file, whose reader reads ahead in blocks."""
    with open_bytes(path) as file:
        items = examples = 0
        fraction = file.fraction
        for item in read(file):
            now = file.fraction
            if items >= SAMPLE and fraction and fraction >= LONG / (file.size or LONG) and now != fraction:
                return items / fraction, examples / fraction
            fraction, items, examples = now, items + 1, examples + len(item)
    return items, examples
