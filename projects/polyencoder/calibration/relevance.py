"""Scores as relevance, 0 to 1: what the contracts of rerankers promise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyencoder.calibration.probability import Calibration
from polyencoder.scoring import best, check_scores

__all__ = ["ranked", "sigmoid", "single"]


def ranked(
    documents: Sequence[str], scores: Tensor, calibration: Calibration | None, *, top_n: int | None = None
) -> list[tuple[int, float]]:
    """Documents in the order of their scores, best first: (place, relevance).

    The relevance is the probability that a document is the right one of all, where the model is calibrated; else the
    sigmoid of its score, which orders as scores do but says nothing by itself.

    Args:
        documents: texts, some of them perhaps equal.
        scores: [documents].
        top_n: how many are given; None for all.

    Raises:
        InputError: a score is nan.
    """
    check_scores(scores)
    values, order = best(scores, len(documents))
    places = order.tolist()
    if calibration is None:
        relevance = [sigmoid(score) for score in values.tolist()]
    else:
        texts = [documents[place] for place in places]
        relevance = calibration.of_ranking(texts, values.tolist(), among=len(set(documents)))
    return list(zip(places, relevance, strict=True))[:top_n]


def single(score: float, calibration: Calibration | None) -> float:
    """The relevance of a text by itself, as if there were no other."""
    if calibration is None:
        return sigmoid(score)
    return float(calibration.probabilities(torch.tensor([[score]]), among=1)[0, 0])


def sigmoid(score: float) -> float:
    """1 / (1 + exp(-score)), of any score."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))
