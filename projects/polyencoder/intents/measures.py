"""How well labels are found: accuracy, the confusions that cost most of it, and what a least probability would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.calibration.fitting import reliability
from polyencoder.intents.examples import Labelled

__all__ = ["Confusion", "Covered", "Measures", "measured"]

LEAST = (0.5, 0.7, 0.9)


class Confusion(NamedTuple):
    """A label that was taken for another."""

    label: str
    taken_for: str
    times: int
    of: int
    """How many texts have the label."""
    text: str
    """The first of those that were."""


class Covered(NamedTuple):
    """What answers of at least this probability are worth."""

    probability: float
    share: float
    """Of the texts, those that get an answer."""
    accuracy: float | None
    """Of these answers; None where there is none."""


class Measures(NamedTuple):
    """How well a classifier does on texts whose labels are known."""

    accuracy: float
    calibration_error: float
    """The mean distance of probability and accuracy, over ten bins (the expected calibration error)."""
    covered: list[Covered]
    confusions: list[Confusion]
    """Those of each two labels, the most frequent first."""


def measured(probabilities: Tensor, labels: Sequence[str], examples: Sequence[Labelled]) -> Measures:
    """The measures of probabilities [examples, labels], on the CPU."""
    best, found = probabilities.max(1)
    place = {label: i for i, label in enumerate(labels)}
    right = found == torch.tensor([place[one.label] for one in examples])
    taken: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for one, i, is_right in zip(examples, found.tolist(), right.tolist(), strict=True):
        if not is_right:
            taken[one.label, labels[i]] += 1
            first.setdefault((one.label, labels[i]), one.text)
    counts = Counter(one.label for one in examples)
    return Measures(
        float(right.float().mean()),
        reliability(best, right, torch.ones(len(best))).error,
        [_covered(least, best, right) for least in LEAST],
        [
            Confusion(label, other, count, counts[label], first[label, other])
            for (label, other), count in sorted(taken.items(), key=lambda item: (-item[1], item[0]))
        ],
    )


def _covered(least: float, probabilities: Tensor, right: Tensor) -> Covered:
    answered = probabilities >= least
    accuracy = float(right[answered].float().mean()) if answered.any() else None
    return Covered(least, float(answered.float().mean()), accuracy)
