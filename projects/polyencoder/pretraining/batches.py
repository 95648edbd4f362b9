"""Batches by token budget, of sequences of similar length, alternating objectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from polyencoder.config import NextName
from polyencoder.data.collator import Batch
from polyencoder.data.epochs import Reader, Source, iter_endless
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import ConfigError, InputError
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch, PairInput, build_pair_batch, build_pair_input
from polyencoder.pretraining.masking import Masking
from polyencoder.text import TextEncoder
from polyencoder.text.batches import cut_into_batches
from polyencoder.training.callbacks.base import Callback, Run

POOL = 32  # batches, approximately, whose examples are sorted by length together
SHORT = 50  # tokens per example, for this approximation
FEWEST = 4  # minimum sequences per batch, so that it can be halved


class PairInputs:
    """Turns examples into inputs of at most `longest` tokens; random choices depend only on the example."""

    def __init__(self, text: TextEncoder, *, longest: int, masking: Masking, next: NextName = "yes-no") -> None:
        self.text, self.longest, self.masking, self._next = text, longest, masking, next

    def remember(self, examples: Sequence[PairExample]) -> None:
        """Tokenizes all texts of examples at once, which is faster."""
        rows = ([*example.turns, example.label, *filter(None, [example.other])] for example in examples)
        self.text.tokenize(list(dict.fromkeys(chain.from_iterable(rows))))

    def mask(self, example: PairExample, rng: np.random.Generator) -> PairInput:
        """The example with masked words."""
        inputs = build_pair_input(self.text, example.turns, example.label, longest=self.longest)
        masked, targets = self.masking(inputs.ids, rng)
        return replace(inputs, ids=masked.tolist(), targets=targets.tolist())

    def draw_next(self, example: PairExample, rng: np.random.Generator) -> PairInput:
        """The example with its own response or, with probability 1/2, another.

        With `contrastive`, context and response are separate sequences, and other examples' responses are negatives.
        """
        if self._next == "contrastive":
            return build_pair_input(self.text, example.turns, example.label, longest=self.longest, apart=True)
        follows = example.other is None or rng.random() < 0.5
        response = example.label if follows or example.other is None else example.other
        return replace(build_pair_input(self.text, example.turns, response, longest=self.longest), follows=follows)


class PairBatches(Callback):
    """Endless batches, alternately for masked words and next utterances; checkpoints store the position.

    `pool` examples at a time (None for those of about 32 batches) are read, each drawn for one of the objectives,
    sorted by length, and cut into batches, which come in random order: an example is in one batch of an epoch, and to
    resume needs no more than the number of examples that were read. tokens: of a process's batch, padding included,
    apart from the extra padding of separate contexts and responses.
    """

    name = "data"
    stored = ("_position",)

    def __init__(
        self,
        source: Source[PairExample],
        inputs: PairInputs,
        *,
        tokens: int,
        seed: int = 0,
        reader: Reader | None = None,
        pool: int | None = None,
    ) -> None:
        if tokens < FEWEST * inputs.longest:
            raise ConfigError(
                f"tokens_per_batch is {tokens}; it must be at least {FEWEST} times the {inputs.longest} tokens of the "
                "longest sequence",
                argument="tokens_per_batch",
            )
        self.reader = reader or Reader()
        self._source, self._inputs, self._tokens, self._seed = source, inputs, tokens, seed
        self._pool = pool or max(64, POOL * tokens // SHORT)
        self._position = (0, 0)  # the pool, and its finished batches

    def __call__(self) -> Iterator[PairBatch]:
        """Yields batches, after the batches of earlier steps."""
        first, done = self._position
        examples = iter_endless(self._source, seed=self._seed, reader=self.reader, seen=first * self._pool)
        number = first
        while pool := list(islice(examples, self._pool)):
            for position, inputs in enumerate(
                self._iter_batches(pool, SeededRandom(f"{self._seed}:pool {number}")), start=1
            ):
                if position > done:
                    yield build_pair_batch(inputs, pad_id=self._inputs.text.pad_id, position=(number, position))
            number, done = number + 1, 0
        raise InputError("the corpus has no examples: no response to a context, and no sentence after another one")

    def _iter_batches(self, pool: Sequence[PairExample], order: SeededRandom) -> Iterator[list[PairInput]]:
        """Batches of a pool's examples, as many for each objective."""
        self._inputs.remember(pool)
        masked: list[PairInput] = []
        paired: list[PairInput] = []
        for example in pool:
            rng = np.random.default_rng(example.key)
            if rng.random() < 0.5:
                masked.append(self._inputs.mask(example, rng))
            else:
                paired.append(self._inputs.draw_next(example, rng))
        parts = [self._cut(inputs, order) for inputs in (masked, paired)]
        count = max(map(len, parts))
        for masked_batch, paired_batch in zip(*(_halve_largest(part, count) for part in parts), strict=True):
            yield masked_batch
            yield paired_batch

    def _cut(self, inputs: Sequence[PairInput], order: SeededRandom) -> list[list[PairInput]]:
        batches = _cut_evenly([len(pair.ids) for pair in inputs], max_tokens=self._tokens)
        return [[inputs[position] for position in batch] for batch in order.shuffle_buffered(batches)]

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if isinstance(batch, PairBatch):
            self._position = batch.position
        return batch


def _cut_evenly(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Like `cut_into_batches`, with the same number of batches but evenly filled, without a small last one.

    Each batch is an update, whose loss is a mean: a batch of few examples would count as much as the others.
    """
    batches = cut_into_batches(lengths, max_tokens=max_tokens)
    low, high = max(lengths, default=0), max_tokens
    while low < high:
        middle = (low + high) // 2
        smaller = cut_into_batches(lengths, max_tokens=middle)
        if len(smaller) > len(batches):
            low = middle + 1
        else:
            high, batches = middle, smaller
    return batches


def _halve_largest(batches: list[list[PairInput]], count: int) -> list[list[PairInput]]:
    """Halves the largest batches until there are as many as needed."""
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        batch = batches[largest]
        batches[largest : largest + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches
