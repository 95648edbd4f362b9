"""Sources of episodes: in memory, or streamed from files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from polyencoder.data.epochs import Episode
from polyencoder.data.readers import DataFile, open_bytes
from polyencoder.data.seeded_random import SeededRandom, shuffled

__all__ = ["Counts", "InMemory", "Streamed", "estimated_counts"]

Read = Callable[[str], Iterator[Episode]]
Share = Callable[[Iterator[Episode]], Iterator[Episode]]
SAMPLE = 2000  # episodes from which the number of all of them is estimated


class Counts(NamedTuple):
    episodes: int
    examples: int


class InMemory:
    """All episodes, read once. An epoch is a true permutation of them."""

    def __init__(self, episodes: Iterator[Episode]) -> None:
        self._episodes = list(episodes)
        self.counts = cache(lambda: _count(self._episodes))

    def episodes(self, rng: SeededRandom | None, *, share: Share) -> Iterator[Episode]:
        if rng is None:
            return share(iter(self._episodes))
        return share(self._episodes[place] for place in rng.order(len(self._episodes)))


class Streamed:
    """Files that are read anew in each epoch, at most `buffer` episodes in memory.

    An epoch takes the files in random order, and from a buffer that is filled from them one episode at random. Every
    reader reads all files, and keeps its share. How much there is in them is estimated, when it is asked for.
    """

    def __init__(self, read: Read, files: Sequence[str], *, buffer: int, estimate: Callable[[], Counts]) -> None:
        self._read, self._files, self._buffer = read, files, buffer
        self.counts = cache(estimate)

    def episodes(self, rng: SeededRandom | None, *, share: Share) -> Iterator[Episode]:
        files = self._files if rng is None else rng.shuffled(self._files)
        episodes = share(episode for file in files for episode in self._read(file))
        return episodes if rng is None else shuffled(episodes, size=self._buffer, rng=rng)


def estimated_counts(read: Callable[[DataFile], Iterator[Episode]], files: Sequence[str]) -> Counts:
    """About how much the files hold, from the beginning of the first ones: exact when that is all."""
    sizes = [os.path.getsize(file) for file in files]
    episodes = examples = done = 0
    for path, size in zip(files, sizes, strict=True):
        with open_bytes(path) as file:
            for episode in read(file):
                episodes += 1
                examples += len(episode)
                if episodes >= SAMPLE and file.fraction:
                    scale = sum(sizes) / (done + size * file.fraction)
                    return Counts(round(episodes * scale), round(examples * scale))
        done += size
    return Counts(episodes, examples)


def _count(episodes: Iterable[Episode]) -> Counts:
    lengths = [len(episode) for episode in episodes]
    return Counts(len(lengths), sum(lengths))
