"""Metrics of rankings, computed here for everyone who asks: recall, hits, mean reciprocal rank, loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Tally", "metric_name", "of_example", "ranks"]

HITS_AT = (1, 5, 10)


def ranks(scores: Tensor, labels: Tensor) -> Tensor:
    """The rank, from 1, of each row's label among its scores: [batch], from [batch, n] and [batch].

    Of candidates with the label's own score those before it count as better, as in a stable sort; so do all scores
    when the label's is nan.
    """
    gold = scores.gather(1, labels.unsqueeze(1))
    columns = torch.arange(scores.size(1), device=scores.device)
    better = ~(scores <= gold) | ((scores == gold) & (columns < labels.unsqueeze(1)))
    better[torch.arange(len(labels), device=scores.device), labels] = False
    return better.sum(1) + 1


def metric_name(k: int, n: int) -> str:
    """What R@k among n candidates is called: the paper's R@k/n."""
    return f"R@{k}/{n}"


def of_example(rank: int, loss: float, n: int | None, *, hits_at: Sequence[int] = HITS_AT) -> dict[str, float]:
    """The metrics of one example whose label has this rank among n candidates: `loss`, `rank`, `mrr`, R@k/n, `hits@k`.

    R@k/n is left out for k >= n, where it says nothing, and without n.
    """
    recall = {metric_name(k, n): float(rank <= k) for k in hits_at if n is not None and k < n}
    hits = {f"hits@{k}": float(rank <= k) for k in hits_at}
    return {"loss": loss, "rank": float(rank), "mrr": 1 / rank, **recall, **hits}


class Tally:
    """Means over examples, which may come in any number of batches and from several processes."""

    def __init__(self, sums: Mapping[str, tuple[float, int]] | None = None) -> None:
        self.sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0), sums or {})

    def add(self, metrics: Iterable[Mapping[str, float]]) -> None:
        """The metrics of some examples."""
        for one in metrics:
            self.merge({name: (value, 1) for name, value in one.items()})

    def merge(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Sums and the number of what was summed, of more examples; a number of 0 stands for a plain sum."""
        for name, (value, count) in sums.items():
            total, counted = self.sums[name]
            self.sums[name] = total + value, counted + count

    def report(self) -> dict[str, float]:
        """Each metric's mean, in the order in which they came."""
        return {name: total / count if count else total for name, (total, count) in self.sums.items()}
