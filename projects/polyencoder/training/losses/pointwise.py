"""Pointwise losses: each candidate's score against its own label, whatever the others' are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.errors import InputError


def bce(scores: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy between sigmoid(score) and the label, the mean over each example's candidates: [batch].

    Nogueira and Cho, "Passage re-ranking with BERT" (2019), Equation 1, with the mean in place of the sum. `labels`
    [batch, n] are probabilities; a score of -inf is padding.

    Raises:
        InputError: a label is above 1.
    """
    if (labels > 1).any():
        raise InputError(f"objective bce reads labels as probabilities, but one is {float(labels.max()):g}")
    there = scores != -torch.inf
    return _mean(F.binary_cross_entropy_with_logits(scores.masked_fill(~there, 0), labels, reduction="none"), there)


def mse(scores: Tensor, labels: Tensor) -> Tensor:
    """Squared difference of score and label, the mean over each example's candidates: [batch].

    Cossock and Zhang, "Subset ranking using regression" (COLT 2006): least squares, with equal weights.
    `labels` [batch, n] are any numbers in the scores' unit; a score of -inf is padding.
    """
    there = scores != -torch.inf
    return _mean((scores.masked_fill(~there, 0) - labels).square(), there)


def _mean(values: Tensor, there: Tensor) -> Tensor:
    return values.masked_fill(~there, 0).sum(-1) / there.sum(-1).clamp(min=1)
