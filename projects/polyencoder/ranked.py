"""`Ranked`: one candidate of a ranking; their probabilities, and rankings of candidates that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyencoder.calibration.risk import find_promised_risk
from polyencoder.index.hits import choose_diverse
from polyencoder.search.contexts import Array

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
    risk: float | None = None
    """The promised maximum share of wrong ones among such answers; None but for the best candidate with a promise."""


def add_probabilities(
    ranked: Sequence[Ranked], calibration: Calibration | None, *, threshold: float | None, among: int
) -> list[Ranked]:
    """Adds probabilities among `among` distinct candidates, and leaves out those below `threshold`; best first."""
    if calibration is None:
        return list(ranked)
    values = calibration.of_ranking([entry.text for entry in ranked], [entry.score for entry in ranked], among=among)
    probable = [entry._replace(probability=value) for entry, value in zip(ranked, values, strict=True)]
    risk = find_promised_risk(calibration.promises_for(None), values[0]) if values else None
    probable[:1] = [entry._replace(risk=risk) for entry in probable[:1]]
    return [entry for entry, value in zip(probable, values, strict=True) if threshold is None or value >= threshold]


def select_diverse(ranked: Sequence[Ranked], vectors: Array, *, k: int | None, diversity: float) -> list[Ranked]:
    """The best `k` (None: all) by maximal marginal relevance, from candidates with these vectors, [candidates, dim]."""
    scores = np.array([entry.score for entry in ranked])
    k = len(ranked) if k is None else k
    positions = choose_diverse(scores, vectors, k=k, diversity=diversity)
    return [ranked[position]._replace(considered=len(ranked)) for position in positions]
