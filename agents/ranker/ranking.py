"""What a matrix of scores says: ranks and metrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from parlai.core.metrics import AverageMetric, Metric
from torch import Tensor

from polyencoder.errors import ConfigError
from polyencoder.measures import recall_name

# ParlAI's teachers count these from the reply's text_candidates; the agent adds the others that were asked for
TEACHER_HITS = (1, 5, 10, 100)


def ranks(scores: Tensor, labels: Tensor) -> Tensor:
    """The rank, from 1, of each row's label among its scores [batch, n].

    Of candidates with the label's own score those before it count as better, as in a stable sort; so do all scores
    when the label's is nan.
    """
    gold = scores.gather(1, labels.unsqueeze(1))
    columns = torch.arange(scores.size(1), device=scores.device)
    better = ~(scores <= gold) | ((scores == gold) & (columns < labels.unsqueeze(1)))
    better[torch.arange(len(labels), device=scores.device), labels] = False
    return better.sum(1) + 1


def ranking_metrics(
    rank_of_label: Sequence[int], losses: Sequence[float], counts: Sequence[int | None], *, hits_at: Sequence[int]
) -> list[dict[str, Metric]]:
    """Metrics of each example: loss, rank, mrr, R{N}@k, and hits@k for the k that ParlAI does not count.

    `counts` gives each example's N, None for no R{N}@k.
    """
    many: list[dict[str, Metric]] = []
    for rank, loss, n in zip(rank_of_label, losses, counts, strict=True):
        metrics: dict[str, Metric] = {
            "loss": AverageMetric(loss),
            "rank": AverageMetric(rank),
            "mrr": AverageMetric(1 / rank),
        }
        for k in hits_at:
            if n is not None and k < n:
                metrics[recall_name(k, n)] = AverageMetric(int(rank <= k))
            if k not in TEACHER_HITS:
                metrics[f"hits@{k}"] = AverageMetric(int(rank <= k))
        many.append(metrics)
    return many


def parse_hits_at(value: str) -> list[int]:
    """`"1,5,10"` -> [1, 5, 10]."""
    try:
        numbers = sorted({int(part) for part in value.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise ConfigError(f"--hits-at {value}: give whole numbers from 1 up, separated by commas, as in 1,5,10")
    return numbers
