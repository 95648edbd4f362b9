"""`Ranked`: one candidate of a ranking; their probabilities, and rankings of candidates that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from polyencoder.index.diversity import Array, marginal_relevance
from polyencoder.index.hits import Hit

if TYPE_CHECKING:
    from polyencoder.calibration import Calibration


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

    @property
    def relevance(self) -> float:
        """The score that orders the candidates."""
        return self.score


R = TypeVar("R", Ranked, Hit)


def with_probabilities(
    ranked: Sequence[R], calibration: Calibration | None, *, least: float | None, among: int, searched: bool = False
) -> list[R]:
    """Adds the probabilities of a calibrated model, and leaves out candidates below `least`, or without one.

    Args:
        ranked: best first.
        calibration: None for a model without one.
        least: the minimum probability; None for none.
        among: the number of distinct candidates, over which probabilities are normalized.
        searched: whether these are the best that a search found, not all.
    """
    if calibration is not None:
        of: Callable[..., Sequence[float | None]] = calibration.of_search if searched else calibration.of_ranking
        values = of([one.text for one in ranked], [one.relevance for one in ranked], among=among)
        ranked = [one._replace(probability=value) for one, value in zip(ranked, values, strict=True)]
    if least is not None:
        ranked = [one for one in ranked if one.probability is not None and one.probability >= least]
    return list(ranked)


def diverse(ranked: Sequence[Ranked], vectors: Array, *, k: int | None, diversity: float) -> list[Ranked]:
    """The best `k` (None: all) by maximal marginal relevance, from candidates with these vectors, [candidates, dim]."""
    scores = np.array([one.score for one in ranked])
    k = len(ranked) if k is None else k
    places = marginal_relevance(scores, vectors, k=k, diversity=diversity)
    return [ranked[place]._replace(considered=len(ranked)) for place in places]
