"""Scores of candidates for contexts, in torch: exact, and differentiable."""

from __future__ import annotations

from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import attention_weights, score
from polyencoder.scoring.keys import Keys
from polyencoder.scoring.topk import best, check_scores

__all__ = [
    "ContextEncoding",
    "Keys",
    "attention_weights",
    "best",
    "check_scores",
    "score",
]
