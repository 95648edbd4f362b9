"""Clustering of a context's codes, so that a search asks for each cluster's mean instead of for each code.

The codes of a trained poly-encoder are much alike. Their nearest candidates are then nearly the same, and 64 searches
find little that two or three do not. Codes that are apart stay apart: how many groups there are depends on the context,
from one to as many as it has codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TOLERANCE", "group_means"]

TOLERANCE = 0.4
"""How far a code may be from the first of its group, as a share of the codes' mean length. Codes whose angle is below
some 23 degrees are one group."""


def group_means(codes: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """The means [groups, dim] of groups of `codes` [m, dim], at least one.

    Farthest-first traversal (Gonzalez 1985): the group of the code nearest to the mean is first; while any code is
    farther than the tolerance from the first of every group, the farthest of all begins a new one. Each code then
    belongs to the nearest. If no two are within the tolerance, the means are the codes themselves, in another order.
    """
    distances = torch.cdist(codes, codes).fill_diagonal_(0)  # which rounding makes of many codes more than 0
    farthest_allowed = tolerance * codes.norm(dim=1).mean()
    firsts = [int((codes - codes.mean(dim=0)).norm(dim=1).argmin())]
    nearest = distances[firsts[0]]
    while nearest.max() > farthest_allowed:
        firsts.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, distances[firsts[-1]])
    group = distances[firsts].argmin(dim=0)  # [m]
    group[firsts] = torch.arange(len(firsts))  # each to its own, also where another is as near
    sums = codes.new_zeros(len(firsts), codes.size(1)).index_add_(0, group, codes)
    return sums / torch.bincount(group, minlength=len(firsts)).unsqueeze(1)
