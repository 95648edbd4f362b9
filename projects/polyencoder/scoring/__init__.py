"""Scores of candidates for contexts, in torch: exact, and differentiable."""

from __future__ import annotations

from polyencoder.scoring.context import ContextEncoding, Keys
from polyencoder.scoring.exact import attention_weights, best, check_scores, score

__all__ = ["ContextEncoding", "Keys", "attention_weights", "best", "check_scores", "score"]
