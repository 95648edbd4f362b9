"""Chance level of the pre-training metrics: that of a model that ignores contexts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.masking import IGNORED
from polyencoder.text import TextEncoder

DEVIATIONS = 2  # standard deviations by which an accuracy must exceed chance


@dataclass(frozen=True)
class Chance:
    """The perplexity of masked words by how frequent words are, and the accuracy of guessed next utterances.

    examples: of the next utterances.
    """

    perplexity: float
    next_accuracy: float
    examples: int

    @classmethod
    def of(cls, held_out: Sequence[PairBatch], read: Iterable[PairExample], text: TextEncoder) -> Chance:
        """Computes it for held-out batches, with word frequencies from sample responses."""
        counts = torch.ones(len(text), dtype=torch.float64)
        ids = [one for tokens in text.ids([example.label for example in read]) for one in tokens]
        counts += torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=len(counts))
        targets = [batch.targets[batch.targets != IGNORED] for batch in held_out if batch.targets is not None]
        losses = -(counts / counts.sum()).log()[torch.cat(targets)] if targets else torch.zeros(1)
        follows = [batch.follows for batch in held_out if batch.follows is not None]
        guessed = [1 / len(batch.answers) for batch in held_out if batch.answers is not None for _ in batch.answers]
        if follows:
            share = float(torch.cat(follows).mean())
            guessed = [max(share, 1 - share)] * sum(map(len, follows))
        accuracy = sum(guessed) / max(1, len(guessed))
        return cls(math.exp(float(losses.mean())), accuracy, len(guessed))

    def not_beaten_by(self, report: Mapping[str, float]) -> list[str]:
        """Lines on the metrics of a `HeldOut` report that are no better than chance."""
        lines = []
        if report["perplexity"] >= self.perplexity:
            lines.append(
                f"masked words have a perplexity of {report['perplexity']:,.0f}, and {self.perplexity:,.0f} by the "
                "frequencies of words alone"
            )
        spread = math.sqrt(self.next_accuracy * (1 - self.next_accuracy) / max(1, self.examples))
        if self.examples and report["next_accuracy"] <= self.next_accuracy + DEVIATIONS * spread:
            lines.append(
                f"next utterances are right in {report['next_accuracy']:.3f} of the cases, and in "
                f"{self.next_accuracy:.3f} by chance"
            )
        return lines
