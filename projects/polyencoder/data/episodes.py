"""Sources of episodes: in memory, or streamed from files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from polyencoder.data.epochs import Episode
from polyencoder.data.readers import DataFile, open_bytes
from polyencoder.data.seeded_random import SeededRandom, shuffled

__all__ = ["Counts", "InMemory", "Streamed", "estimated_counts"]

Read = Callable[[str], Iterator[Episode]]
Share = Callable[[Iterator[Episode]], Iterator[Episode]]
SAMPLE = 2000  # episodes from which the number of a file's is estimated, or more
LONG = 1 << 19  # bytes on disk that are read at least: much more than the pieces that decompressors ask for
FILES = 16  # of a kind that are sampled


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
    """About how much the files hold, from the beginnings of some: exact where these are all of it.

    Of each kind of file, by its suffix, since compressed ones hold more in a byte.
    """
    kinds: dict[str, list[str]] = {}
    for path in files:
        kinds.setdefault(Path(path).suffix.lower(), []).append(path)
    episodes = examples = 0.0
    for paths in kinds.values():
        chosen = paths[:: -(-len(paths) // FILES)]
        found = [_estimated(read, path) for path in chosen]
        scale = sum(map(os.path.getsize, paths)) / max(1, sum(map(os.path.getsize, chosen)))
        episodes += scale * sum(one for one, _ in found)
        examples += scale * sum(other for _, other in found)
    return Counts(round(episodes), round(examples))


def _estimated(read: Callable[[DataFile], Iterator[Episode]], path: str) -> tuple[float, float]:
    """About how many episodes and examples a file holds.

    A reader reads ahead, a block at a time. Where the next block has been read, the episodes before it are those of the
    blocks before.
    """
    with open_bytes(path) as file:
        episodes = examples = 0
        at = file.fraction
        for episode in read(file):
            now = file.fraction
            if episodes >= SAMPLE and at and at >= LONG / (file.size or LONG) and now != at:
                return episodes / at, examples / at
            at, episodes, examples = now, episodes + 1, examples + len(episode)
    return episodes, examples


def _count(episodes: Iterable[Episode]) -> Counts:
    lengths = [len(episode) for episode in episodes]
    return Counts(len(lengths), sum(lengths))
