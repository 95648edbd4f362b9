"""The order of candidates: by score, ties by position."""

from __future__ import annotations

from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.topk import comparable

__all__ = ["best", "check_scores"]


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row [..., n], or all n, best first, and their columns: both [..., min(k, n)].

    Of equal scores earlier columns come first, as `evaluation.ranks` counts them. `topk` takes any: a model that
    gives all candidates the same score could seem to be always right. A score that is nan is -inf, as in `search`.
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
    """Raise InputError where a score is nan: no order of these candidates would mean anything."""
    if scores.isnan().any():
        raise InputError("the model gives scores that are not numbers (nan): its weights are damaged, or overflow")
