"""Shortlists: the lists that an engine proposes for the codes of a context, and a bound for all other candidates.

The codes of a trained poly-encoder are similar: their nearest candidates are nearly the same, and 64 queries find
little that two or three do not. So without need of a proof, codes that nearly coincide share a query, their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from polyencoder.search.contexts import Array

TOLERANCE = 0.4
"""Maximum distance of a code from the first of its group, as a share of the codes' mean length: about 23 degrees."""
# A group's mean has about the nearest candidates of its codes, in another order; longer lists compensate.


class Lists(NamedTuple):
    """The nearest candidates of some queries, as an engine gives them."""

    rows: Sequence[Array]
    """The distinct candidates of each query, int64 [n]."""
    outside: Array
    """float64 [queries]: the largest inner product of each query with a candidate outside its list, but for rounding;
    -inf if there is none, inf if it is unknown."""


def iter_shortlists(
    codes: Sequence[Array], nearest: Callable[[Array], Lists], *, grouped: bool, max_norm: float
) -> Iterator[tuple[Array, float]]:
    """For the codes of each context, float32 [n, dim]: the candidates of their lists, ascending, and a bound.

    The bound is the largest possible inner product of a context's codes with a candidate outside; inf if unknown.

    Args:
        codes: of at least one context.
        nearest: from queries, float32 [n, dim], to their lists.
        grouped: similar codes share a query; else each has its own.
        max_norm: the length of the longest vector, for the rounding error.
    """
    queries = [compute_group_means(part) if grouped and len(part) else part for part in codes]
    stacked = np.concatenate(queries)
    lists = nearest(stacked) if len(stacked) else Lists([], np.empty(0))
    # The maximum rounding difference of two fp32 inner products, the engine's and ours: dim x 2^-24 x |c| |y| for each.
    # Twice that, for the score's softmax and sum.
    limits, dim = np.finfo(np.float32), stacked.shape[1]
    largest = max_norm * np.linalg.norm(stacked.astype(np.float64), axis=1)  # that a product, or a part of it, can be
    outside = lists.outside + 2 * dim * float(limits.eps) * largest
    outside += 2 * dim * float(limits.tiny)  # smaller products lose digits, or are 0
    outside[largest >= limits.max] = np.inf  # larger ones are inf or nan, which no list has in its order
    first = 0
    for vectors, query in zip(codes, queries, strict=True):
        part = slice(first, first + len(query))
        first = part.stop
        rows = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *lists.rows[part]]))
        if len(query) < len(vectors) and np.isfinite(outside[part]).any():
            yield rows, np.inf  # a mean bounds no candidate outside for its codes
        else:
            yield rows, float(outside[part].max(initial=-np.inf))


def compute_group_means(codes: Array, *, tolerance: float = TOLERANCE) -> Array:
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
