"""Thresholds with a proven risk: of the answers above one, at most a stated share is wrong, with a stated confidence.

Selective prediction with a bound (Geifman and El-Yaniv, NeurIPS 2017). Half of the examples fit the probabilities and
order the thresholds, the other half tests them in this order, the first one that fails ends it, and the last one that
holds is taken: a fixed sequence, so that no correction for several tests is needed ("Learn then test", Angelopoulos et
al., 2021). A test is the exact binomial bound of Clopper and Pearson on the share of wrong answers. The probabilities
only order the answers; the bound holds however good they are, for examples that are drawn as the tested ones were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from polyencoder.search.contexts import Array
from polyencoder.validation import validated

CONFIDENCE = 0.95
_STEPS = 100  # thresholds that may be tested


class Answers(NamedTuple):
    """The best candidates of several contexts."""

    probabilities: Array
    """float64 [n]."""
    right: Array
    """bool [n]."""


@validated
class Promise:
    """A promise: of the answers from a probability on, at most a share is wrong."""

    risk: float
    """The largest share of wrong answers."""
    confidence: float
    """The probability that the promise holds."""
    threshold: float
    """The lowest probability of an answer."""
    examples: int
    """The answers that were tested."""
    answered: float
    """The share of contexts that get an answer."""

    def __str__(self) -> str:
        return (
            f"Of the answers with a probability of {self.threshold:.4f} or more, at most {100 * self.risk:.3g} % are "
            f"wrong ({100 * self.confidence:.4g} % confidence, {self.examples:,} tested); {self.answered:.0%} of the "
            "questions get one."
        )


def find_promised_risk(promises: Sequence[Promise], probability: float) -> float | None:
    """The smallest promised risk of a best candidate with this probability; None if it is below all thresholds."""
    return min((promise.risk for promise in promises if probability >= promise.threshold), default=None)


def bound_risk(wrong: int | Array, answers: int | Array, *, confidence: float) -> Any:
    """The upper bound of Clopper and Pearson on the share of wrong answers, from the number of wrong ones."""
    from scipy.stats import beta  # takes a while to import

    wrong, answers = np.asarray(wrong), np.asarray(answers)
    bound = beta.ppf(confidence, wrong + 1, np.maximum(answers - wrong, 1))
    return np.where(wrong >= answers, 1.0, bound)


def compute_p_value(wrong: int, answers: int, *, risk: float) -> float:
    """The probability of at least this number of wrong answers if their share is `risk` (an exact test)."""
    from scipy.stats import binomtest

    return float(binomtest(wrong, answers, risk, alternative="greater").pvalue)


def count_fewest_answers(risk: float, *, confidence: float) -> int:
    """The number of answers, all of them right, that prove a risk."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - risk))


def find_smallest_risk(fitted: Answers, tested: Answers, *, confidence: float = CONFIDENCE) -> float:
    """The smallest risk that the tested answers prove: the bound at the first threshold that is tested."""
    return _bound_risk(tested, _sort_thresholds(fitted, confidence=confidence)[0], confidence=confidence)


def prove(fitted: Answers, tested: Answers, *, risk: float, confidence: float = CONFIDENCE) -> Promise | None:
    """Finds the lowest threshold with a proven risk; None if no threshold holds.

    Args:
        fitted: answers that the probabilities were fitted to, which order the thresholds.
        tested: answers that neither the model nor the probabilities have seen.
        risk: the largest share of wrong answers, between 0 and 1.
        confidence: the probability that the promise holds, between 0 and 1.
    """
    best = None
    for threshold in _sort_thresholds(fitted, confidence=confidence):
        if _bound_risk(tested, threshold, confidence=confidence) > risk:
            break
        count = int((tested.probabilities >= threshold).sum())
        best = Promise(
            risk=risk,
            confidence=confidence,
            threshold=float(threshold),
            examples=count,
            answered=count / len(tested.right),
        )
    return best


def _sort_thresholds(fitted: Answers, *, confidence: float) -> Array:
    """The thresholds to test: from the one that promises most by the fitted answers, downwards."""
    thresholds = np.unique(np.quantile(fitted.probabilities, np.linspace(0, 1, _STEPS)))[::-1]
    above = fitted.probabilities >= thresholds[:, None]
    bounds = bound_risk((above & ~fitted.right).sum(1), above.sum(1), confidence=confidence)
    return thresholds[int(bounds.argmin()) :]


def _bound_risk(tested: Answers, threshold: float, *, confidence: float) -> float:
    answered = tested.probabilities >= threshold
    wrong = int((answered & ~tested.right).sum())
    return float(bound_risk(wrong, int(answered.sum()), confidence=confidence))
