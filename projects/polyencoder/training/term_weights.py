"""Fits the weights of a new score's terms, before the first update.

A few weights need few examples; by gradient, beside an encoder's, they need many updates. The first ones lower all of
them, for as long as the terms are too large together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.training.distributed import gather_objects
from polyencoder.training.losses import softmax_loss

ScoresByWeights = Callable[[Tensor], Tensor]
"""Term weights, [k] in float64 -> scores [batch, n], differentiable (`RankerModel.build_weighted_scorer`)."""


def fit_weights(scores: ScoresByWeights | None, pool: CandidatePool, *, start: Tensor) -> Tensor:
    """Fits weights with which right candidates score above others: [k], none below 0.

    Minimises the sum of the examples' -log softmax of their right candidates, whatever the run's own objective, plus |w
    - start|^2, which decides where the examples do not: weights that rank them all right could grow without limit.

    scores: of this process's examples; None without any. The loss is that of all processes. start: [k], equal in all of
    them; returned if a term is not finite, and if all weights would be 0: no gradient would reach the encoder.
    """
    from scipy.optimize import minimize  # here: the import takes a fifth of a second

    origin = start.detach().double().cpu().numpy()
    loss = None if scores is None else _build_loss(scores, pool)

    def compute_value(weights: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        everyone = gather_objects((0.0, np.zeros_like(weights)) if loss is None else loss(weights))
        off = weights - origin
        return sum(value for value, _ in everyone) + off @ off, sum(slope for _, slope in everyone) + 2 * off

    bounds = [(0, None)] * len(origin)  # the loss of a few examples has kinks, at which L-BFGS-B may stop
    optimum = minimize(compute_value, origin, jac=True, bounds=bounds, method="TNC")
    return torch.from_numpy(optimum.x).to(start) if np.isfinite(optimum.fun) and optimum.x.any() else start


def _build_loss(
    compute_scores: ScoresByWeights, pool: CandidatePool
) -> Callable[[np.ndarray[Any, Any]], tuple[float, np.ndarray[Any, Any]]]:
    """The loss of weights, and its gradient."""
    right = pool.numbers > 0
    rows = right.any(1)  # labels of 0 alone rank nothing
    right = right[rows]
    padding = None if pool.mask is None else ~pool.mask[rows]

    @torch.enable_grad()
    def compute_loss(values: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        weights = torch.tensor(values, device=right.device, requires_grad=True)
        with torch.autocast(right.device.type, enabled=False):
            scores = compute_scores(weights)[rows]
            scores = scores if padding is None else scores.masked_fill(padding, -torch.inf)
            loss = softmax_loss(scores, right).sum()
        (slope,) = torch.autograd.grad(loss, weights)
        return loss.item(), slope.cpu().numpy()

    return compute_loss
