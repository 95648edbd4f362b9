"""Losses of distillation, KL and margin-MSE: [batch] from scores of model and teacher, [batch, n].

A score of -inf is padding; a teacher's -inf means not scored. Both are masked.
"""

from __future__ import annotations

import torch
from torch import Tensor


def distillation_kl(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T^2 KL(p || q), p and q the softmax over the candidates of the teacher's scores / T and of `scores` / T.

    Section 2 of Hinton et al., "Distilling the knowledge in a neural network" (2015): with the factor T^2 the gradient
    is of the same size at any temperature.
    """
    taught = teacher > -torch.inf
    p = torch.log_softmax(teacher / temperature, dim=-1)
    q = torch.log_softmax(scores.masked_fill(~taught, -torch.inf) / temperature, dim=-1)
    terms = p.exp() * (p - q).masked_fill(~taught, 0)  # what was not asked would be 0 * (-inf - -inf)
    return temperature**2 * terms.sum(-1)


def margin_mse(scores: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of the margins between the label and each other candidate, against the teacher's margins.

    Equation 3 of Hofstätter et al., "Improving efficient neural ranking models with cross-architecture knowledge
    distillation" (2020), for any number of negatives. `labels` [batch] are the columns of the labels. 0 without
    negatives.
    """
    places = labels.unsqueeze(-1)
    negative = (teacher > -torch.inf).scatter(-1, places, False)
    kept = negative.scatter(-1, places, True)
    ours, theirs = scores.masked_fill(~kept, 0), teacher.masked_fill(~kept, 0)
    errors = (ours.gather(-1, places) - ours) - (theirs.gather(-1, places) - theirs)
    squares = errors.square() * negative
    return squares.sum(-1) / negative.sum(-1).clamp(min=1)
