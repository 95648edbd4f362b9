"""Scores candidates for contexts: the whole matrix (`score`) or the top k (`search`). Pure torch."""

from __future__ import annotations

from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import attention_weights, score
from polyencoder.scoring.keys import Keys
from polyencoder.scoring.search import search
from polyencoder.scoring.topk import TopK, best, check_scores

__all__ = [
    "ContextEncoding",
    "Keys",
    "TopK",
    "attention_weights",
    "best",
    "check_scores",
    "score",
    "search",
]
