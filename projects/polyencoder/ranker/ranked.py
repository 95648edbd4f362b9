"""`Ranked`: one candidate of a ranking, and rankings of candidates that differ from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Ranked(NamedTuple):
    """One candidate of a ranking."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    """Its position in the list of candidates passed in."""
    text: str
    score: float
    probability: float | None = None
    """The probability that it is the right one; None if the model is not calibrated."""
    considered: int | None = None
    """The number of candidates from which a ranking with `diversity` chose; None without it."""


def diverse(ranked: Sequence[Ranked], vectors: Tensor, *, k: int | None, diversity: float) -> list[Ranked]:
    """The best `k` (None: all) by maximal marginal relevance, from candidates with these vectors, [candidates, dim]."""
    from polyencoder.scoring.diversity import marginal_relevance  # here: `Ranked` alone needs no torch

    scores = np.array([one.score for one in ranked])
    k = len(ranked) if k is None else k
    places = marginal_relevance(scores, vectors.cpu().float().numpy(), k=k, diversity=diversity)
    return [ranked[place]._replace(considered=len(ranked)) for place in places]
