"""Fits a calibration to the scores of held-out examples, and measures how reliable it is.

Each example is used twice: with its right candidates and without them, so that both answerable and unanswerable
contexts are covered. The fit is by maximum likelihood over temperature and "none", in two numbers (1 / T and b); it is
convex with one right candidate each, and the probabilities of several right ones are added. The reliability is measured
out of fold: of each fifth of the examples by the fit to the others.

If risks shall be promised, only half of the examples are fitted; `risk` tests thresholds on the other half, each
example with its right candidates or, by chance, without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.calibration.probability import Calibration
from polyencoder.calibration.risk import CONFIDENCE, Answers, count_fewest_answers, find_smallest_risk, prove
from polyencoder.errors import InputError


@dataclass(frozen=True)
class Observations:
    """The scores of the best candidates of each example."""

    scores: Tensor
    """float64 [examples, width], best first, padded with -inf. Of a search, `DEPTH` and those of the right candidates
    are enough."""
    right: Tensor
    """bool [examples, width], the right candidates among them."""
    among: Tensor
    """[examples], the number of ranked candidates."""
    depth: int | None = None
    """The number of best candidates that a probability takes into account; None for all."""

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Tensor) -> Observations:
        return replace(self, scores=self.scores[rows], right=self.right[rows], among=self.among[rows])

    def remove_right(self) -> Observations:
        """Copies the observations without the right candidates."""
        scores = self.scores.masked_fill(self.right, -torch.inf).sort(1, descending=True).values
        among = self.among - self.right.sum(1).to(self.among)
        return replace(self, scores=scores, right=torch.zeros_like(self.right), among=among.clamp(min=1))

    def keep_right_where(self, answerable: Tensor) -> Observations:
        """Copies the observations, those that are not `answerable` (bool [examples]) without the right candidates."""
        other, rows = self.remove_right(), answerable.unsqueeze(1)
        return replace(
            self,
            scores=torch.where(rows, self.scores, other.scores),
            right=self.right & rows,
            among=torch.where(answerable, self.among, other.among),
        )


_FOLDS = 5
_BINS = 10
_MIN_EXAMPLES = 10
_MIN_RIGHT = 0.01  # the share of first candidates that must be right


class Bin(NamedTuple):
    """A bin of the reliability diagram: answers of similar probability."""

    probability: float
    """The mean of their probabilities."""
    right: float
    """The share of right answers."""
    share: float
    """The share of all answers."""


class Reliability(NamedTuple):
    """Reliability of the probabilities of first candidates: ten bins of equal weight, and two errors."""

    bins: list[Bin]
    error: float
    """The expected calibration error: the mean distance of probability and share of right ones, over the bins."""
    brier: float
    """The mean squared distance of probability and truth, 0 to 1: less if probabilities tell right from wrong, too."""


class Fit(NamedTuple):
    """A calibration and its metrics."""

    calibration: Calibration
    before: Reliability
    """The reliability of the softmax of the scores."""
    after: Reliability
    accuracy: float
    """The share of contexts whose first candidate is right, among answerable ones."""
    least_risk: float | None = None
    """The smallest risk that the tested examples could promise; None without a risk."""
    left_out: int = 0
    """The number of better candidates that searches dropped as turns of their contexts."""


def check_fit(examples: int, *, unanswerable: float, risks: Sequence[float], confidence: float) -> None:
    """Raises InputError for too few examples, or a share that is not between 0 and 1."""
    shares = [("unanswerable", unanswerable), ("confidence", confidence), *(("risk", risk) for risk in risks)]
    for name, share in shares:
        if not 0 < share < 1:
            raise InputError(f"{name} is {share}; it must be between 0 and 1", argument=name)
    if examples < _MIN_EXAMPLES:
        raise InputError(f"{examples} examples are too few to calibrate a model; give at least {_MIN_EXAMPLES}")
    for risk in risks:
        needed = 2 * max(_MIN_EXAMPLES, count_fewest_answers(risk, confidence=confidence))
        if examples < needed:
            lowest = 1 - (1 - confidence) ** (1 / (examples // 2))
            raise InputError(
                f"a risk of {risk:g} needs at least {needed:,} examples, half of them to test it, and there are "
                f"{examples:,}: give more, or a risk of at least {lowest:.2g}",
                argument="risk",
            )


def fit(
    observations: Observations,
    *,
    fingerprint: str,
    unanswerable: float = 0.5,
    risks: Sequence[float] = (),
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Fit:
    """Fits the calibration that makes the observations most likely.

    Args:
        observations: of at least ten examples that the model was not trained on.
        fingerprint: of the model, see `polyencoder.encoding.fingerprint.compute_model_fingerprint`.
        unanswerable: the expected share of contexts without a right candidate.
        risks: shares of wrong answers to promise, each between 0 and 1.
        confidence: the probability that such a promise holds.
        seed: draws the half of the examples that tests the promises.

    Raises:
        InputError: there are too few examples, a share is not between 0 and 1, or the model finds the right candidate
            in almost no case, or no better than chance.
    """
    check_fit(len(observations), unanswerable=unanswerable, risks=risks, confidence=confidence)
    if (observations.among <= 1).all():
        raise InputError("each example has a single candidate: give wrong ones, too, to tell right answers from")
    first = int(observations.right[:, 0].sum())
    if first < _MIN_RIGHT * len(observations):
        raise InputError(
            f"the right answer comes first in {first:,} of {len(observations):,} examples: too few to tell when an "
            "answer is right; are the responses among the candidates, word by word, and is it this model's data?"
        )
    fold = torch.arange(len(observations)) % _FOLDS
    after = torch.empty(2, len(observations), dtype=torch.float64)
    for i in range(_FOLDS):
        held_out, fitted = (fold == i).nonzero().squeeze(1), (fold != i).nonzero().squeeze(1)
        fold_calibration = _fit_scaled(observations.select(fitted), unanswerable=unanswerable, fingerprint=fingerprint)
        mixed, _ = _add_unanswerable(observations.select(held_out), unanswerable=unanswerable)
        after[:, held_out] = _compute_first_probabilities(fold_calibration, mixed).view(2, -1)
    mixed, weights = _add_unanswerable(observations, unanswerable=unanswerable)
    before, right = mixed.scores.softmax(1)[:, 0].nan_to_num(0), mixed.right[:, 0]  # nan without any candidate
    calibration, lowest_risk = fit_promising(
        observations, risks, confidence=confidence, unanswerable=unanswerable, fingerprint=fingerprint, seed=seed
    )
    return Fit(
        calibration,
        measure_reliability(before, right, weights),
        measure_reliability(after.flatten(), right, weights),
        observations.right[:, 0].double().mean().item(),
        lowest_risk,
    )


def fit_promising(
    observations: Observations,
    risks: Sequence[float],
    *,
    confidence: float,
    unanswerable: float,
    fingerprint: str,
    seed: int,
) -> tuple[Calibration, float | None]:
    """The calibration of `fit`, and the smallest risk that could be promised; its reliability is not measured."""
    if not risks:
        return _fit_scaled(observations, unanswerable=unanswerable, fingerprint=fingerprint), None
    generator = torch.Generator().manual_seed(seed)
    n = len(observations)
    halves = torch.randperm(n, generator=generator).split((n + 1) // 2)
    answerable = torch.rand(n, generator=generator) >= unanswerable
    calibration = _fit_scaled(observations.select(halves[0]), unanswerable=unanswerable, fingerprint=fingerprint)
    drawn = observations.keep_right_where(answerable)
    probabilities, right = _compute_first_probabilities(calibration, drawn).numpy(), drawn.right[:, 0].numpy()
    fitted, tested = (Answers(probabilities[half], right[half]) for half in halves)
    promises = [prove(fitted, tested, risk=risk, confidence=confidence) for risk in risks]
    proven = tuple(promise for promise in promises if promise is not None)
    return replace(calibration, promises=proven), find_smallest_risk(fitted, tested, confidence=confidence)


def _compute_first_probabilities(calibration: Calibration, observations: Observations) -> Tensor:
    scores = observations.scores[:, : observations.depth]
    probabilities = calibration.probabilities(scores.numpy(), among=observations.among.numpy())
    return torch.from_numpy(probabilities[:, 0])


def measure_reliability(probabilities: Tensor, right: Tensor, weights: Tensor) -> Reliability:
    """The reliability of `probabilities` [n], given which are `right` [n], bool, and their weights [n]."""
    order = probabilities.argsort()
    p, y, w = probabilities[order].double(), right[order].double(), (weights / weights.sum())[order].double()
    bin_numbers = ((w.cumsum(0) - w / 2) * _BINS).long()
    bins = [
        Bin(
            float((p * w)[rows].sum() / w[rows].sum()), float((y * w)[rows].sum() / w[rows].sum()), float(w[rows].sum())
        )
        for rows in (bin_numbers == i for i in bin_numbers.unique())
    ]
    error = sum(bin_.share * abs(bin_.probability - bin_.right) for bin_ in bins)
    return Reliability(bins, error, float((w * (p - y) ** 2).sum()))


def _add_unanswerable(observations: Observations, *, unanswerable: float) -> tuple[Observations, Tensor]:
    """Each example with its right candidates, then each without them, and their weights."""
    parts = [observations, observations.remove_right()]
    scores = torch.cat([part.scores[:, : part.depth] for part in parts]).double()
    right = torch.cat([part.right[:, : part.depth] for part in parts])
    among = torch.cat([part.among for part in parts]).double()
    n = len(observations)
    weights = torch.cat([torch.full((n,), share, dtype=torch.float64) for share in (1 - unanswerable, unanswerable)])
    return Observations(scores, right, among), weights / n


def _fit_scaled(observations: Observations, *, unanswerable: float, fingerprint: str) -> Calibration:
    """Fits to scores that are standardised to mean 0 and deviation 1, with a penalty that vanishes with n."""
    from scipy.optimize import minimize  # comes with scikit-learn; takes a while to import

    mixed, weights = _add_unanswerable(observations, unanswerable=unanswerable)
    real = mixed.scores.isfinite()
    mean, deviation = mixed.scores[real].mean(), mixed.scores[real].std()
    if not deviation > 0:
        raise InputError("all scores are equal: they do not separate right from wrong candidates")
    z = ((mixed.scores - mean) / deviation).masked_fill(~real, 0)
    offset = mixed.among.log().unsqueeze(1)
    right = torch.cat([mixed.right, ~mixed.right.any(1, keepdim=True)], 1)  # "none" is the last

    def compute_loss(parameters: Tensor) -> Tensor:
        logits = torch.cat([(parameters[0] * z).masked_fill(~real, -torch.inf), parameters[1] + offset], 1)
        picked = logits.log_softmax(1).masked_fill(~right, -torch.inf).logsumexp(1)
        return (parameters.square().sum() / len(observations) / 2) - (weights * picked).sum()

    def compute_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        variable = torch.from_numpy(parameters).requires_grad_()
        value = compute_loss(variable)
        return value.item(), torch.autograd.grad(value, variable)[0].numpy()

    slope, none = minimize(compute_gradient, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-9}).x.tolist()
    if slope <= 0:
        raise InputError(
            "the scores are no better than chance at finding the right candidate: is it this model's data?"
        )
    return Calibration(
        temperature=float(deviation) / slope, none=none + slope * float(mean / deviation), fingerprint=fingerprint
    )
