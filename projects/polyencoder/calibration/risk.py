"""Thresholds with a proven risk: of the answers above one, at most a stated share is wrong, with a stated confidence.

Selective prediction with a bound (Geifman and El-Yaniv, NeurIPS 2017). Half of the examples fit the probabilities and
order the thresholds, the other half tests them in this order, the first one that fails ends it, and the last one that
holds is taken: a fixed sequence, so that no correction for several tests is needed ("Learn then test", Angelopoulos et
al., 2021). A test is the exact binomial bound of Clopper and Pearson on the share of wrong answers. The probabilities
only order the answers; the bound holds however good they are, for examples that are drawn as the tested ones were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from polyencoder.errors import InputError

CONFIDENCE = 0.95
_STEPS = 100  # thresholds that may be tested

Array = np.ndarray[Any, Any]


class Answers(NamedTuple):
    """The best candidates of several contexts."""

    probabilities: Array
    """float64 [n]."""
    right: Array
    """bool [n]."""


@dataclass(frozen=True)
class Promise:
    """Of the answers at least this probable at most a share is wrong."""

    risk: float
    """The largest share of wrong answers."""
    confidence: float
    """The probability that the promise holds."""
    threshold: float
    """The least probability of an answer."""
    examples: int
    """The answers that were tested."""
    answered: float
    """The share of contexts that get an answer."""

    def __str__(self) -> str:
        return (
            f"Of the answers above {self.threshold:.2f}, at most {self.risk:.3g} are wrong ({self.confidence:.0%} "
            f"confidence, {self.examples:,} answers); {self.answered:.0%} of the questions get one"
        )


def largest_risk(wrong: int | Array, answers: int | Array, *, confidence: float) -> Any:
    """The upper bound of Clopper and Pearson on the share of wrong answers, from the wrong ones among some answers."""
    from scipy.stats import beta  # takes a while to import

    wrong, answers = np.asarray(wrong), np.asarray(answers)
    bound = beta.ppf(confidence, wrong + 1, np.maximum(answers - wrong, 1))
    return np.where(wrong >= answers, 1.0, bound)


def fewest_answers(risk: float, *, confidence: float) -> int:
    """The number of answers, all of them right, that prove a risk."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - risk))


def prove(fitted: Answers, tested: Answers, *, risk: float, confidence: float = CONFIDENCE) -> Promise | None:
    """Finds the lowest threshold with a proven risk.

    Args:
        fitted: answers that the probabilities were fitted to, which order the thresholds.
        tested: answers that neither the model nor the probabilities have seen.
        risk: the largest share of wrong answers, between 0 and 1.
        confidence: the probability that the promise holds, between 0 and 1.

    Returns:
        The promise; None if no threshold holds.

    Raises:
        InputError: even if all tested answers were right, they would be too few.
    """
    fewest = fewest_answers(risk, confidence=confidence)
    if len(tested.right) < fewest:
        least = 1 - (1 - confidence) ** (1 / max(len(tested.right), 1))
        raise InputError(
            f"a risk of {risk:g} needs at least {fewest:,} examples to test it, all of them answered rightly, and there "
            f"are {len(tested.right):,}: give twice {fewest:,} examples or more, or a risk of at least {least:.2g}",
            argument="risk",
        )
    thresholds = np.unique(np.quantile(fitted.probabilities, np.linspace(0, 1, _STEPS)))[::-1]
    counts, wrong = _counts(fitted, thresholds)
    bounds = largest_risk(wrong, counts, confidence=confidence)
    best = None
    for threshold in thresholds[int(bounds.argmin()) :]:
        answered = tested.probabilities >= threshold
        count = int(answered.sum())
        if largest_risk(int((answered & ~tested.right).sum()), count, confidence=confidence) > risk:
            break
        best = Promise(risk, confidence, float(threshold), count, count / len(tested.right))
    return best


def _counts(answers: Answers, thresholds: Array) -> tuple[Array, Array]:
    """The numbers of answers and of wrong answers at each threshold."""
    above = answers.probabilities >= thresholds[:, None]
    return above.sum(1), (above & ~answers.right).sum(1)
