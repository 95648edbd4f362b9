"""Pre-training objectives: masked words and next utterances, one per batch; and what they measure by chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.masking import IGNORED
from polyencoder.text import TextEncoder
from polyencoder.training.distributed import sum_over_processes
from polyencoder.training.objective import Outcome

MASKED, NEXT = "masked", "next"
"""Prefixes of their metrics: `masked_loss`, `next_accuracy`."""


class PretrainingObjective:
    """Masked words: cross-entropy of the chosen words. Next utterance: binary cross-entropy of whether it follows.

    Or, of a batch whose contexts and responses are apart, cross-entropy over its responses: the others are the
    negatives (Henderson et al., "Efficient natural language response suggestion for Smart Reply", 2017).

    With several processes a loss is the mean over the words or examples of all, each with its own batch's responses.
    An outcome's `losses` are of words or of examples; it has no scores, and sums `masked_loss` and
    `masked_accuracy`, or `next_loss` and `next_accuracy`.
    """

    def __init__(self, model: PretrainingModel) -> None:
        self.model = model
        self.skipped = self.skipped_examples = 0

    def __call__(self, batch: Batch | None) -> Outcome:
        assert isinstance(batch, PairBatch)  # each process has one in each step
        name, losses, right = self.compute_losses(batch)
        count = sum_over_processes(len(losses), device=losses.device)
        detached = losses.detach()
        sums = {
            f"{name}_loss": (float(detached.sum()), len(losses)),
            f"{name}_accuracy": (float(right.sum()), len(losses)),
        }
        return Outcome(
            losses.sum() / max(1, count), detached, detached.new_zeros(len(losses), 0), CandidatePool([]), sums
        )

    def compute_losses(self, batch: PairBatch) -> tuple[str, Tensor, Tensor]:
        """Computes a batch's objective, losses [n], and whether each prediction is right [n]."""
        if batch.targets is not None:
            chosen = batch.targets != IGNORED
            logits, targets = self.model.compute_masked_logits(batch.contexts, chosen), batch.targets[chosen]
            return MASKED, F.cross_entropy(logits.float(), targets, reduction="none"), logits.argmax(1) == targets
        if batch.answers is not None:
            scores = self.model.score_responses(batch.contexts, contexts=len(batch.answers))
            return NEXT, F.cross_entropy(scores, batch.answers, reduction="none"), scores.argmax(1) == batch.answers
        assert batch.follows is not None
        scores = self.model.score_next(batch.contexts).float()
        losses = F.binary_cross_entropy_with_logits(scores, batch.follows, reduction="none")
        return NEXT, losses, (scores > 0) == (batch.follows > 0)


DEVIATIONS = 2  # standard deviations by which an accuracy must exceed chance


@dataclass(frozen=True)
class Chance:
    """Metrics of a model that ignores contexts: perplexity by the frequency of words, accuracy of guessed utterances.

    examples: of the next utterances.
    """

    perplexity: float
    next_accuracy: float
    examples: int

    @classmethod
    def from_batches(cls, held_out: Sequence[PairBatch], read: Iterable[PairExample], text: TextEncoder) -> Chance:
        """Computes it for held-out batches, with word frequencies from sample responses."""
        counts = torch.ones(len(text), dtype=torch.float64)
        ids = [token for tokens in text.tokenize([example.label for example in read]) for token in tokens]
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

    def describe_not_beaten(self, report: Mapping[str, float]) -> list[str]:
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
