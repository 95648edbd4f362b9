"""Pairs of candidates of which one has a higher label, for pairwise losses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Pairs", "pairs_of"]


class Pairs(NamedTuple):
    """Pairs (i, j): i is one of the p right candidates of an example, j any of its n. All tensors are [batch, p, n].

    better: [batch, p], the columns of the i. there: whether i has the higher label, and both are candidates; other
    pairs do not count. differences: s_i - s_j, 0 where the pair does not count.
    """

    better: Tensor
    there: Tensor
    differences: Tensor


def pairs_of(scores: Tensor, labels: Tensor) -> Pairs:
    """The pairs of scores and labels [batch, n]; a score of -inf is padding.

    Only a candidate with a label above 0 is better than another, so that in-batch candidates cost n for each right
    one, not n for each candidate.
    """
    present = scores != -torch.inf
    labels = labels.masked_fill(~present, -1.0)
    most = max(1, int((labels > 0).sum(-1).max())) if len(labels) else 1
    of_better, better = labels.topk(most, dim=-1)
    there = (of_better.unsqueeze(-1) > labels.unsqueeze(-2)) & present.unsqueeze(-2)
    finite = scores.masked_fill(~present, 0)
    differences = finite.gather(-1, better).unsqueeze(-1) - finite.unsqueeze(-2)
    return Pairs(better, there, torch.where(there, differences, 0))
