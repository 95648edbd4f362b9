"""Negative sampling for all tasks: seeded candidates from the training labels, for data without candidates."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count as count_up

from polyencoder.data.epochs import Reader
from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import ConfigError, InputError

NUM_NEGATIVES = 19
"""The default number of candidates to sample, where there are enough."""
SAMPLED_FROM = 100_000
"""The number of labels at the start of streamed data to sample negatives from."""

_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Removes case, punctuation and articles, as ParlAI's hits@k does to compare answers."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def count_negatives(pairs: Iterable[Example], responses: Iterable[str]) -> int:
    """The default number of candidates to sample for a pair: `NUM_NEGATIVES`, or as many as every pair can have."""
    right = max((len(set(map(normalize, pair.right))) for pair in pairs if pair.candidates is None), default=1)
    distinct: set[str] = set()
    for text in responses:
        distinct.add(normalize(text))
        if len(distinct) == NUM_NEGATIVES + right:
            break
    return len(distinct) - right


class NegativeSampler:
    """Samples candidates for an example: its right texts and `count` other labels, in random order.

    A drawn text never equals one of the example's labels, nor another drawn text, once case, punctuation and articles
    are set aside as ParlAI's hits@k does: an answer that would score as right is not a negative. No tokenizer is
    needed, so that all models have the same negatives; training merges those with a label's tokens with the label.

    labels: of training, read when the first is needed; each distinct text is equally likely. source: their origin, in
    errors.
    """

    def __init__(self, labels: Iterable[str], *, count: int = 19, seed: int = 0, source: str = "the data") -> None:
        if count < 1:
            raise ConfigError(f"num_negatives is {count}; it must be at least 1", argument="num_negatives")
        self._labels = labels
        self.count = count
        self.seed = seed
        self.source = source
        self._draws = count_up()

    @cached_property
    def pool(self) -> list[str]:
        """The labels to draw from."""
        return list(dict.fromkeys(self._labels))

    def skip(self, draws: int, *, reader: Reader) -> None:
        """Skips an interrupted run's `draws` draws without a key."""
        self._draws = count_up(draws * reader.count + reader.number, reader.count)

    def complete(self, example: Example, *, key: str | None = None) -> Example:
        """Adds candidates to an example: its own or drawn ones, as from `draw_candidates`, with all its right texts."""
        right = example.right
        return replace(
            example, candidates=self.draw_candidates(right, inline=example.candidates, key=key, positives=len(right))
        )

    def draw_candidates(
        self, labels: Sequence[str], *, inline: Sequence[str] | None = None, key: str | None = None, positives: int = 1
    ) -> Sequence[str]:
        """The first `positives` labels and negatives, which are none of `labels`, shuffled; or `inline`.

        Equal keys give equal candidates; without a key each call draws anew. InputError: fewer than `count` usable
        labels.
        """
        draw = next(self._draws) if key is None else None
        if inline is not None:
            return inline
        rng = SeededRandom(f"{self.seed}:draw {draw}" if key is None else f"{self.seed}:key {key}")
        excluded = {normalize(label) for label in labels}
        chosen = [*labels[:positives]]
        for row in rng.iter_order(len(self.pool)):
            text = self.pool[row]
            normal = normalize(text)
            if normal not in excluded:
                excluded.add(normal)
                chosen.append(text)
                if len(chosen) == positives + self.count:
                    return rng.shuffle_buffered(chosen)
        if len(chosen) == positives:
            raise InputError(
                f"{self.source}: has no label that differs from {labels[0]!r:.60}: there is nothing to rank"
            )
        raise InputError(
            f"num_negatives is {self.count}, but {self.source} has only {len(chosen) - positives} labels that differ "
            f"from {labels[0]!r:.60}; lower it",
            argument="num_negatives",
        )
