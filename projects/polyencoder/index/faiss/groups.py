"""Groups of codes: codes that nearly coincide share one query of FAISS, their mean, where no proof is asked for.

The codes of a trained poly-encoder are similar: their nearest candidates are nearly the same, and 64 queries find
little that two or three do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TOLERANCE = 0.4
"""Maximum distance of a code from the first of its group, as a share of the codes' mean length: an angle of about
23 degrees."""
# The nearest candidates of a group's mean are those of its codes in another order; longer lists compensate.


def group_means(codes: Array, *, tolerance: float = TOLERANCE) -> Array:
    """The means [groups, dim] of groups of `codes` [m, dim], at least one.

    Farthest-first traversal (Gonzalez 1985): the first group starts with the code nearest to the mean; while a code is
    farther than the tolerance from the first of every group, the farthest one starts a new group. Each code then joins
    the nearest. If no two are within the tolerance, the means are the codes themselves, in another order.
    """
    if len(codes) == 1:
        return codes
    wide = codes.astype(np.float64)  # or the distance of equal codes would not be about 0
    squares = (wide**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * wide @ wide.T, 0))
    np.fill_diagonal(distances, 0)
    farthest_allowed = tolerance * np.sqrt(squares).mean()
    firsts = [int(np.linalg.norm(wide - wide.mean(axis=0), axis=1).argmin())]
    nearest = distances[firsts[0]]
    while nearest.max() > farthest_allowed:
        firsts.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, distances[firsts[-1]])
    group = distances[firsts].argmin(axis=0)  # [m]
    group[firsts] = np.arange(len(firsts))  # each to its own group, even if another is as near
    members = group == np.arange(len(firsts))[:, None]  # [groups, m]
    return ((members @ wide) / members.sum(axis=1, keepdims=True)).astype(codes.dtype)
