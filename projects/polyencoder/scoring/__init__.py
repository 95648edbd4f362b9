"""Scores of candidates for contexts, in torch: exact, and differentiable."""

from __future__ import annotations

from polyencoder.scoring.context import ContextEncoding, Keys
from polyencoder.scoring.exact import compute_attention_weights, score, select_best

__all__ = ["ContextEncoding", "Keys", "compute_attention_weights", "score", "select_best"]
