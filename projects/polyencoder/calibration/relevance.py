"""Relevance, 0 to 1, from scores: the contract of rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyencoder.calibration.probability import Calibration
from polyencoder.errors import InputError


def best_first(scores: np.ndarray[Any, Any]) -> list[int]:
    """The places of scores [n], best first; equal ones in their order. InputError for a nan."""
    if np.isnan(scores).any():
        raise InputError("the model's scores are nan: its weights are damaged, or overflow")
    return np.argsort(-scores, kind="stable").tolist()


def ranked(
    documents: Sequence[str], scores: np.ndarray[Any, Any], calibration: Calibration | None, *, top_n: int | None = None
) -> list[tuple[int, float]]:
    """Sorts documents by score, best first: (place, relevance).

    The relevance is the probability that a document is the right one of all, if the model is calibrated; else the
    sigmoid of its score, which is in the order of the scores but no probability.

    Args:
        documents: texts; equal ones count as one.
        scores: [documents].
        top_n: the number of documents to return; None for all.

    Raises:
        InputError: a score is nan.
    """
    places = best_first(scores)
    values = scores[places]
    if calibration is None:
        relevance = _sigmoid(values).tolist()
    else:
        texts = [documents[place] for place in places]
        relevance = calibration.of_ranking(texts, values.tolist(), among=len(set(documents)))
    return list(zip(places, relevance, strict=True))[:top_n]


def _sigmoid(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.exp(-np.logaddexp(0, -scores.astype(np.float64)))
