"""Pooling, the paper's red(): reduces a transformer's outputs to one vector (Section 4.2 and Table 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.config import Reduction


def reduce(outputs: Tensor, mask: Tensor, *, reduction: Reduction, first_m: int = 64) -> Tensor:
    """One vector for each sequence: [batch, length, dim] and mask [batch, length] -> [batch, dim].

    `first` takes the output of the start token, `mean` and `max` are over all tokens, `mean_first` averages the first
    `first_m` tokens, `mean_except_first` all but the start token: the paper's "all of them except the first one".
    Padding never counts; the result of an empty sequence is 0.
    """
    if reduction == "first":
        return outputs[:, 0].masked_fill(~mask[:, :1], 0)
    if reduction == "max":
        best = outputs.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        return best.masked_fill(~mask[:, :1], 0)
    if reduction == "mean_first":
        outputs, mask = outputs[:, :first_m], mask[:, :first_m]
    if reduction == "mean_except_first":
        outputs, mask = outputs[:, 1:], mask[:, 1:]
    weights = mask.to(outputs.dtype)
    return torch.einsum("bld,bl->bd", outputs, weights) / weights.sum(1, keepdim=True).clamp(min=1)
