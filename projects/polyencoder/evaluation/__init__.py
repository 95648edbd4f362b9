"""Evaluation: ranks and their metrics, and a ranker's scores of examples."""

from __future__ import annotations

from polyencoder.evaluation.examples import evaluate, example_scores, recall_at_1
from polyencoder.evaluation.metrics import Tally, merge_twins, of_example, of_pool, of_search, pool_ranks, ranks

__all__ = [
    "Tally",
    "evaluate",
    "example_scores",
    "merge_twins",
    "of_example",
    "of_pool",
    "of_search",
    "pool_ranks",
    "ranks",
    "recall_at_1",
]
