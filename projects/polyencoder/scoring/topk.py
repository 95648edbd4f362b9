"""Orders candidates by score, then by position."""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import InputError


def comparable(scores: Tensor) -> Tensor:
    """Replaces nan by -inf, so that scores can be sorted."""
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row [..., n], best first, and their columns: both [..., min(k, n)].

    Equal scores are ordered by column; `topk` orders them arbitrarily. A nan counts as -inf, as in searches.
    """
    scores = comparable(scores)
    k = min(k, scores.size(-1))
    values, columns = scores.topk(k)
    tied_within = (values[..., 1:] == values[..., :-1]).any()
    if k and (tied_within or ((scores >= values[..., -1:]).sum(-1) > k).any()):
        ordered, columns = scores.sort(dim=-1, descending=True, stable=True)
        return ordered[..., :k], columns[..., :k]
    return values, columns


def check_scores(scores: Tensor) -> None:
    """Raises InputError if a score is nan."""
    if scores.isnan().any():
        raise InputError("the model's scores are nan: its weights are damaged, or overflow")
