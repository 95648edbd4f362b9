"""Epochs of conversations in the order of ParlAI's batches, which read several in parallel; can resume mid-epoch.

The library's own order, `polyencoder.data.epochs.iter_endless`, has examples, not conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parlai.agents.ranker.dialogue.history import EARLIER

from polyencoder.data.epochs import Reader, Source
from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom, shuffle_buffered

Episode = list[Example]
"""The examples of one conversation, in order; the turns of each are the new ones of its context."""

Messages = list[dict[str, Any]]
"""The same as ParlAI's messages."""


class Epochs:
    """Yields one reader's episodes. The teachers of a batch share one object and take episodes in turn.

    Args:
        source: the stored conversations.
        reader: selects this process's part of it.
        seed: of the shuffling, None for the order of the source.
        endless: start the next epoch at the end of one instead of stopping.
        seen: examples that an interrupted run has read from this reader, which are skipped (if endless).
        slots: conversations that are read in parallel, one for each example of a batch: each gives one example in
            its turn, and starts another episode when its own ends. The interrupted run had as many unfinished.
        draw: makes an epoch's messages from a stored conversation.
        mix: `draw` may make several episodes of one, each up to a message that is `episode_done`. With a seed they are
            shuffled with those of other conversations, through a buffer of this size. None: they stay together, read
            one after another as one episode, which is also the case without a seed.
    """

    def __init__(
        self,
        source: Source[Episode],
        *,
        reader: Reader,
        seed: int | None,
        endless: bool,
        seen: int = 0,
        slots: int = 1,
        draw: Callable[[Episode, SeededRandom], Messages],
        mix: int | None = None,
    ) -> None:
        self._source, self._reader, self._seed, self._endless, self._draw = source, reader, seed, endless, draw
        self._seen, self._slots, self._mix = seen, slots, mix
        self.epoch = 0
        self._stream = self._read()
        self._next: Messages | None = None
        self._looked = False

    def restart(self) -> None:
        """Restarts the epoch; endless reading continues."""
        if not self._endless:
            self._stream, self._next, self._looked = self._read(), None, False

    def take(self) -> Messages | None:
        """The next episode; None at the end of the epoch."""
        self._look()
        episode, self._next, self._looked = self._next, None, False
        return episode

    @property
    def over(self) -> bool:
        """Whether the epoch has no further episode."""
        if self._endless:
            return False
        self._look()
        return self._next is None

    def _look(self) -> None:
        if not self._looked:
            self._next, self._looked = next(self._stream, None), True

    def _read(self) -> Iterator[Messages]:
        episodes = self._iter_epochs()
        if self._seen:
            yield from self._iter_begun(episodes)
        yield from episodes

    def _iter_begun(self, episodes: Iterator[Messages]) -> Iterator[Messages]:
        """The episode of each slot after the seen examples: the rest of an unfinished one, or a new one."""
        rests: list[tuple[Messages, int]] = [([], 0)] * self._slots
        for number in range(self._seen - self._skip_whole_epochs()):
            slot = number % self._slots
            episode, done = rests[slot]
            if done == len(episode):
                episode, done = next(episodes, []), 0
            rests[slot] = episode, done + 1
        for episode, done in rests:
            if done < len(episode):
                yield _cut_beginning(episode, done)
            elif (fresh := next(episodes, None)) is not None:
                yield fresh

    def _skip_whole_epochs(self) -> int:
        """Skips finished epochs without reading them, if every stored episode has one message.

        Returns the number of examples in them. Other readers' episodes count too: in each epoch this reader's share has
        the same size, but other episodes, which may have more or fewer messages.
        """
        total = 0
        for episode in self._draw_episodes(Reader()):
            total += 1
            if len(episode) != 1 or total > self._seen * self._reader.count:
                return 0
        length = len(range(self._reader.number, total, self._reader.count))
        self.epoch = self._seen // length if length else 0
        return self.epoch * length

    def _iter_epochs(self) -> Iterator[Messages]:
        while True:
            empty = True
            for episode in self._iter_epoch():
                empty = False
                yield episode
            if not self._endless or empty:
                return
            self.epoch += 1

    def _iter_epoch(self) -> Iterator[Messages]:
        if self._seed is None or self._mix is None:
            return self._draw_episodes(self._reader)
        parts = (part for episode in self._draw_episodes(self._reader) for part in _split(episode))
        return shuffle_buffered(parts, size=self._mix, rng=SeededRandom(f"{self._seed}:epoch {self.epoch}:mix"))

    def _draw_episodes(self, reader: Reader) -> Iterator[Messages]:
        """Yields a reader's episodes of one epoch, each made by `draw` from a stored one."""
        rng = None if self._seed is None else SeededRandom(f"{self._seed}:epoch {self.epoch}")
        for number, episode in enumerate(self._source.iter_items(rng, reader=reader)):
            idx = number * reader.count + reader.number
            yield self._draw(episode, SeededRandom(f"{self._seed}:epoch {self.epoch}:draw {idx}"))


def _split(episode: Messages) -> Iterator[Messages]:
    """Splits the messages made from a conversation into episodes, each ending with a message that is `episode_done`."""
    part: Messages = []
    for message in episode:
        part.append(message)
        if message.get("episode_done"):
            yield part
            part = []
    if part:
        yield part


def _cut_beginning(episode: Messages, done: int) -> Messages:
    """An episode without its first messages, whose turns become context of the first remaining one."""
    first = episode[done].copy()
    first[EARLIER] = episode[:done]
    return [first, *episode[done + 1 :]]
