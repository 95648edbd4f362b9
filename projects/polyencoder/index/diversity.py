"""Maximal marginal relevance: chooses candidates that are relevant and unlike each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyencoder.errors import InputError

Array = np.ndarray[Any, Any]

_LEAST = 50


def pool_size(k: int) -> int:
    """The number of best candidates from which k are chosen."""
    return max(4 * k, _LEAST)


def marginal_relevance(scores: Array, vectors: Array, *, k: int, diversity: float) -> list[int]:
    """Chooses k of n candidates by maximal marginal relevance (Carbonell and Goldstein, 1998), in this order.

    Each choice has the largest (1 - diversity) r - diversity s of those that are left: r is its score, scaled so that
    the n have 0 to 1, and s its largest cosine with a candidate that was chosen before. The first choice is the best
    score; of equal ones the first counts.

    Args:
        scores: [n], on any scale.
        vectors: [n, dim]; a zero vector is similar to nothing.
        k: the number to choose; all if there are fewer.
        diversity: 0 orders by scores alone, 1 by similarities alone.

    Returns:
        The places of the chosen candidates.
    """
    scores, vectors = np.asarray(scores, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    span = np.ptp(scores) if len(scores) else 0.0
    relevance = (1 - diversity) * ((scores - scores.min()) / span) if span > 0 else np.zeros(len(scores))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    value, nearest, chosen = relevance.copy(), np.full(len(scores), -np.inf), list[int]()
    for _ in range(min(k, len(scores))):
        place = int(np.argmax(value if chosen else scores))
        chosen.append(place)
        nearest = np.maximum(nearest, directions @ directions[place])
        value = relevance - diversity * nearest
        value[chosen] = -np.inf
    return chosen


def checked_diversity(diversity: Any) -> float:
    """A diversity from 0 to 1; 0 for None. InputError for anything else."""
    if diversity is None:
        return 0.0
    if isinstance(diversity, bool) or not isinstance(diversity, (int, float)) or not 0 <= diversity <= 1:
        raise InputError(f"diversity is {diversity!r:.60}; it must be a number from 0 to 1", argument="diversity")
    return float(diversity)
