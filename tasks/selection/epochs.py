"""Epochs of conversations in the order of ParlAI's batches, which read several side by side; resumes inside them.

The library's own order, `polyencoder.data.epochs.endless`, has examples, not conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parlai.agents.ranker.dialogue.history import EARLIER

from polyencoder.data.epochs import Reader, Source
from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom, shuffled

__all__ = ["Episode", "Epochs", "Messages"]

Episode = list[Example]
"""The examples of one conversation, in order; the turns of each are what is new in its context."""

Messages = list[dict[str, Any]]
"""The same as ParlAI's messages."""


class Epochs:
    """One reader's episodes, one at a time. A batch's teachers share one object and take their episodes in turn.

    Args:
        source: what is read.
        reader: which part of it is ours.
        seed: of the shuffling, None for the order of the source.
        endless: begin the next epoch when one is over, instead of stopping.
        seen: examples that an earlier, stopped run has had from this reader, if it is endless. They are passed over.
        slots: conversations that are read side by side, one for each example of a batch: each takes one example in
            its turn, and another episode when its own is over. So the stopped run was in the middle of as many.
        draw: makes an epoch's messages from a stored conversation.
        mix: `draw` may make several episodes of one, each up to a message that is `episode_done`. With a seed they are
            shuffled among those of other conversations, through a buffer of that size. None: they stay together, taken
            one after another as if they were one, as they do without a seed.
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
        """Begin the epoch again; endless reading continues."""
        if not self._endless:
            self._stream, self._next, self._looked = self._read(), None, False

    def take(self) -> Messages | None:
        """The next episode; None at the end of the epoch."""
        self._look()
        episode, self._next, self._looked = self._next, None, False
        return episode

    @property
    def over(self) -> bool:
        """Whether there is no further episode in this epoch."""
        if self._endless:
            return False
        self._look()
        return self._next is None

    def _look(self) -> None:
        if not self._looked:
            self._next, self._looked = next(self._stream, None), True

    def _read(self) -> Iterator[Messages]:
        episodes = self._all_epochs()
        if self._seen:
            yield from self._begun(episodes)
        yield from episodes

    def _begun(self, episodes: Iterator[Messages]) -> Iterator[Messages]:
        """What each slot has when the seen examples are taken from it: the rest of its episode, or a new one."""
        rests: list[tuple[Messages, int]] = [([], 0)] * self._slots
        for number in range(self._seen - self._whole_epochs()):
            slot = number % self._slots
            episode, done = rests[slot]
            if done == len(episode):
                episode, done = next(episodes, []), 0
            rests[slot] = episode, done + 1
        for episode, done in rests:
            if done < len(episode):
                yield _rest(episode, done)
            elif (fresh := next(episodes, None)) is not None:
                yield fresh

    def _whole_epochs(self) -> int:
        """Pass over the epochs that are over, where they need not be read: all stored episodes give one message.

        Gives the number of examples in them. Others' episodes count too: our share is of as many in each epoch, but of
        other ones, with more messages or fewer.
        """
        total = 0
        for episode in self._drawn(Reader()):
            total += 1
            if len(episode) != 1 or total > self._seen * self._reader.count:
                return 0
        length = len(range(self._reader.number, total, self._reader.count))
        self.epoch = self._seen // length if length else 0
        return self.epoch * length

    def _all_epochs(self) -> Iterator[Messages]:
        while True:
            empty = True
            for episode in self._one_epoch():
                empty = False
                yield episode
            if not self._endless or empty:
                return
            self.epoch += 1

    def _one_epoch(self) -> Iterator[Messages]:
        if self._seed is None or self._mix is None:
            return self._drawn(self._reader)
        parts = (part for episode in self._drawn(self._reader) for part in _split(episode))
        return shuffled(parts, size=self._mix, rng=SeededRandom(f"{self._seed}:epoch {self.epoch}:mix"))

    def _drawn(self, reader: Reader) -> Iterator[Messages]:
        """A reader's episodes of one epoch, each as `draw` makes it of a stored one."""
        rng = None if self._seed is None else SeededRandom(f"{self._seed}:epoch {self.epoch}")
        for number, episode in enumerate(self._source.items(rng, reader=reader)):
            place = number * reader.count + reader.number
            yield self._draw(episode, SeededRandom(f"{self._seed}:epoch {self.epoch}:draw {place}"))


def _split(episode: Messages) -> Iterator[Messages]:
    """What was made of an episode as the episodes that it is: the last message of each is `episode_done`."""
    part: Messages = []
    for message in episode:
        part.append(message)
        if message.get("episode_done"):
            yield part
            part = []
    if part:
        yield part


def _rest(episode: Messages, done: int) -> Messages:
    """An episode without its first messages, which the first of the others brings along: they are its context."""
    first = episode[done].copy()
    first[EARLIER] = episode[:done]
    return [first, *episode[done + 1 :]]
