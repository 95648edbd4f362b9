"""Fits a calibration to the scores of held-out examples, and measures how reliable it is.

Each example is used twice: with its right candidates and without them, so that both answerable and unanswerable
contexts are covered. The fit is by maximum likelihood over temperature and "none", in two numbers (1 / T and b); it is
convex with one right candidate each, and the probabilities of several right ones are added. The reliability is measured
out of fold: of each fifth of the examples by the fit to the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.calibration.observations import Observations
from polyencoder.calibration.probability import Calibration
from polyencoder.errors import InputError

_FOLDS = 5
_BINS = 10
_FEWEST_EXAMPLES = 10
_LEAST_RIGHT = 0.01  # the share of first candidates that must be right
_FEWEST_ANSWERS = 10  # for a precision


class Bin(NamedTuple):
    """A bin of the reliability diagram: answers of similar probability."""

    probability: float
    """Their mean."""
    right: float
    """The share of right ones."""
    share: float
    """Of all answers."""


class Reliability(NamedTuple):
    """Reliability of the probabilities of first candidates: ten bins of equal weight, and two errors."""

    bins: list[Bin]
    error: float
    """The expected calibration error: the mean distance of probability and share of right ones, over the bins."""
    brier: float
    """The mean squared distance of probability and truth, 0 to 1: less where they tell right from wrong, too."""


class Fit(NamedTuple):
    """A calibration and its metrics."""

    calibration: Calibration
    before: Reliability
    """Of the softmax of the scores."""
    after: Reliability
    accuracy: float
    """The share of contexts whose first candidate is right, among answerable ones."""
    coverage: float
    """The share of contexts answered at the threshold; 0 without one."""


def check_fit(examples: int, *, unanswerable: float, precision: float | None) -> None:
    """Raises InputError for too few examples, and a share that is not between 0 and 1, as `fit` does."""
    for name, share in {"unanswerable": unanswerable, "precision": precision}.items():
        if share is not None and not 0 < share < 1:
            raise InputError(f"{name} is {share}; it must be between 0 and 1", argument=name)
    if examples < _FEWEST_EXAMPLES:
        raise InputError(f"{examples} examples are too few to calibrate a model; give at least {_FEWEST_EXAMPLES}")


def fit(
    observations: Observations, *, fingerprint: str, unanswerable: float = 0.5, precision: float | None = None
) -> Fit:
    """Fits the calibration that makes the observations most likely.

    Args:
        observations: of at least ten examples that the model was not trained on.
        fingerprint: of the model, see `polyencoder.encoding.fingerprint.model_fingerprint`.
        unanswerable: the expected share of contexts without a right candidate.
        precision: also find the threshold above which this share of the answers is right.

    Raises:
        InputError: there are too few examples, a share is not between 0 and 1, or the model finds the right candidate
            in almost no case, or no better than chance.
    """
    check_fit(len(observations), unanswerable=unanswerable, precision=precision)
    first = int(observations.right[:, 0].sum())
    if first < _LEAST_RIGHT * len(observations):
        raise InputError(
            f"the right answer comes first in {first:,} of {len(observations):,} examples: too few to tell when an "
            "answer is right; are the responses among the candidates, word by word, and is it this model's data?"
        )
    fold = torch.arange(len(observations)) % _FOLDS
    after = torch.empty(2, len(observations), dtype=torch.float64)
    for i in range(_FOLDS):
        held_out, others = (fold == i).nonzero().squeeze(1), (fold != i).nonzero().squeeze(1)
        found = _fitted(observations.select(others), unanswerable=unanswerable, fingerprint=fingerprint)
        both = _both(observations.select(held_out), unanswerable=unanswerable).observations
        after[:, held_out] = _first_probabilities(found, both).view(2, -1)
    asked = _both(observations, unanswerable=unanswerable)
    before = asked.observations.scores.softmax(1)[:, 0].nan_to_num(0)  # nan without any candidate
    right, weights = asked.observations.right[:, 0], asked.weights
    threshold, coverage = None, 0.0
    if precision is not None:
        threshold, coverage = _threshold(after.flatten(), right, weights, precision=precision)
    final = _fitted(observations, unanswerable=unanswerable, fingerprint=fingerprint)
    return Fit(
        Calibration(
            temperature=final.temperature,
            none=final.none,
            fingerprint=fingerprint,
            precision=precision,
            threshold=threshold,
        ),
        reliability(before, right, weights),
        reliability(after.flatten(), right, weights),
        observations.right[:, 0].double().mean().item(),
        coverage,
    )


def _first_probabilities(calibration: Calibration, observations: Observations) -> Tensor:
    """The probability of each example's best candidate, [n]."""
    found = calibration.probabilities(observations.scores.numpy(), among=observations.among.numpy())
    return torch.from_numpy(found[:, 0])


def reliability(probabilities: Tensor, right: Tensor, weights: Tensor) -> Reliability:
    """The reliability of `probabilities` [n], given which are `right` [n], bool, and their weights [n]."""
    order = probabilities.argsort()
    p, y, w = probabilities[order].double(), right[order].double(), (weights / weights.sum())[order].double()
    bin_of = ((w.cumsum(0) - w / 2) * _BINS).long()
    bins = [
        Bin(
            float((p * w)[rows].sum() / w[rows].sum()), float((y * w)[rows].sum() / w[rows].sum()), float(w[rows].sum())
        )
        for rows in (bin_of == i for i in bin_of.unique())
    ]
    error = sum(one.share * abs(one.probability - one.right) for one in bins)
    return Reliability(bins, error, float((w * (p - y) ** 2).sum()))


class _Asked(NamedTuple):
    observations: Observations
    weights: Tensor


def _both(observations: Observations, *, unanswerable: float) -> _Asked:
    """Each example with its right candidates, then each without them, and their weights."""
    parts = [observations, observations.without_the_right()]
    scores = torch.cat([part.scores[:, : part.depth] for part in parts]).double()
    right = torch.cat([part.right[:, : part.depth] for part in parts])
    among = torch.cat([part.among for part in parts]).double()
    n = len(observations)
    weights = torch.cat([torch.full((n,), share, dtype=torch.float64) for share in (1 - unanswerable, unanswerable)])
    return _Asked(Observations(scores, right, among), weights / n)


def _fitted(observations: Observations, *, unanswerable: float, fingerprint: str) -> Calibration:
    """Fits to scores that are standardised to mean 0 and deviation 1, with a penalty that vanishes with n."""
    from scipy.optimize import minimize  # comes with scikit-learn; takes a while to import

    asked, weights = _both(observations, unanswerable=unanswerable)
    real = asked.scores.isfinite()
    mean, deviation = asked.scores[real].mean(), asked.scores[real].std()
    if not deviation > 0:
        raise InputError("all scores are equal: they do not separate right from wrong candidates")
    z = ((asked.scores - mean) / deviation).masked_fill(~real, 0)
    offset = asked.among.log().unsqueeze(1)
    right = torch.cat([asked.right, ~asked.right.any(1, keepdim=True)], 1)  # "none" is the last

    def loss(at: Tensor) -> Tensor:
        logits = torch.cat([(at[0] * z).masked_fill(~real, -torch.inf), at[1] + offset], 1)
        picked = logits.log_softmax(1).masked_fill(~right, -torch.inf).logsumexp(1)
        return (at.square().sum() / len(observations) / 2) - (weights * picked).sum()

    def with_gradient(at: np.ndarray) -> tuple[float, np.ndarray]:
        variable = torch.from_numpy(at).requires_grad_()
        value = loss(variable)
        return value.item(), torch.autograd.grad(value, variable)[0].numpy()

    slope, none = minimize(with_gradient, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-9}).x.tolist()
    if slope <= 0:
        raise InputError(
            "the scores are no better than chance at finding the right candidate: is it this model's data?"
        )
    return Calibration(
        temperature=float(deviation) / slope, none=none + slope * float(mean / deviation), fingerprint=fingerprint
    )


def _threshold(p: Tensor, right: Tensor, weights: Tensor, *, precision: float) -> tuple[float | None, float]:
    """The lowest probability from which on this share of the answers is right, and the share of contexts it answers."""
    order = p.argsort(descending=True)
    p, y, w = p[order], right[order].double(), weights[order]
    share = w.cumsum(0)
    good = (w * y).cumsum(0) / share >= precision
    good[:-1] &= p[:-1] > p[1:]  # of equal ones all or none are answered
    good[: _FEWEST_ANSWERS - 1] = False
    if not good.any():
        return None, 0.0
    last = int(good.nonzero()[-1])
    return float(p[last]), float(share[last] / w.sum())
