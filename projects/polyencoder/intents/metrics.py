"""Metrics of a classifier: accuracy, confusions, calibration error, and coverage at minimum probabilities."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.calibration.fitting import reliability
from polyencoder.intents.examples import Labelled

MIN_PROBABILITIES = (0.5, 0.7, 0.9)


class Confusion(NamedTuple):
    """A label that was taken for another."""

    label: str
    taken_for: str
    times: int
    of: int
    """The number of texts with the label."""
    text: str
    """The first one that was misclassified."""


class Coverage(NamedTuple):
    """The answers of at least a probability."""

    probability: float
    share: float
    """The share of texts that get an answer."""
    accuracy: float | None
    """The accuracy of these answers; None if there are none."""


class ClassifierMetrics(NamedTuple):
    """The metrics of a classifier on labelled texts."""

    accuracy: float
    calibration_error: float
    """The mean distance of probability and accuracy, over ten bins (the expected calibration error)."""
    covered: list[Coverage]
    confusions: list[Confusion]
    """One for each two labels, the most frequent first."""


def evaluate(probabilities: Tensor, labels: Sequence[str], examples: Sequence[Labelled]) -> ClassifierMetrics:
    """Computes the metrics of probabilities [examples, labels], on the CPU."""
    best, places = probabilities.max(1)
    predicted = [labels[place] for place in places.tolist()]
    right = torch.tensor([one.label == label for one, label in zip(examples, predicted, strict=True)])
    mistakes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one, label in zip(examples, predicted, strict=True):
        if one.label != label:
            mistakes[one.label, label].append(one.text)
    counts = Counter(one.label for one in examples)
    covered = []
    for least in MIN_PROBABILITIES:
        answered = best >= least
        accuracy = float(right[answered].float().mean()) if answered.any() else None
        covered.append(Coverage(least, float(answered.float().mean()), accuracy))
    return ClassifierMetrics(
        float(right.float().mean()),
        reliability(best, right, torch.ones(len(best))).error,
        covered,
        [
            Confusion(label, other, len(texts), counts[label], texts[0])
            for (label, other), texts in sorted(mistakes.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
    )
