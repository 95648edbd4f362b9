"""How well a ranker ranks: ranks and their metrics, and a ranker's scores of examples."""

from __future__ import annotations

from polyencoder.evaluation.examples import RecallChange, evaluate, example_scores, recall_at_1, recall_change
from polyencoder.evaluation.metrics import Tally, metric_name, ranks

__all__ = [
    "RecallChange",
    "Tally",
    "evaluate",
    "example_scores",
    "metric_name",
    "ranks",
    "recall_at_1",
    "recall_change",
]
