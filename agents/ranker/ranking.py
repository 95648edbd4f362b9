"""The library's metrics of a batch, as ParlAI's."""

from __future__ import annotations

from collections.abc import Mapping

from parlai.core.metrics import AverageMetric, Metric

# ParlAI's teachers count these from the reply's text_candidates; the agent adds the others that were asked for
TEACHER_HITS = tuple(f"hits@{k}" for k in (1, 5, 10, 100))


def parlai_metrics(values: Mapping[str, float]) -> dict[str, Metric]:
    """The library's metrics of one example as ParlAI's, without those that its teachers count."""
    return {name: AverageMetric(value) for name, value in values.items() if name not in TEACHER_HITS}
