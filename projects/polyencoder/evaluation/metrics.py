"""Ranking metrics: recall, hits, mean reciprocal rank, nDCG, loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.data.pool import CandidatePool, merge_equal
from polyencoder.evaluation.names import HITS_AT, NDCG, format_recall_name

CUTOFF = 10  # of nDCG


def ranks(scores: Tensor, labels: Tensor, *, right: Tensor | None = None) -> Tensor:
    """The rank, from 1, of each row's label among its scores: [batch], from [batch, n] and [batch].

    Wrong candidates with the label's own score count as better, and so does nan: a model that scores all alike is right
    nowhere. All are better than a label with nan. `right` [batch, n]: further right candidates, which do not count.
    """
    better = ~(scores < scores.gather(1, labels.unsqueeze(1)))
    if right is not None:
        better &= ~right
    better[torch.arange(len(labels), device=scores.device), labels] = False
    return better.sum(1) + 1


def pool_ranks(scores: Tensor, pool: CandidatePool) -> Tensor:
    """`ranks` of the first right candidate of each example: [batch], from its masked scores [batch, n]."""
    right = None if pool.relevance is None else pool.relevance > 0
    return ranks(scores, find_first_right(scores, pool), right=right)


def merge_twins(scores: Tensor, pool: CandidatePool, keys: Sequence[Hashable]) -> tuple[Tensor, CandidatePool]:
    """Masked scores [batch, n], and their pool, with texts of equal keys merged; N of R{N}@k counts texts."""
    merged = merge_equal(pool, keys)
    if merged is pool:
        return scores, pool
    first: dict[Hashable, str] = {}
    for key, text in zip(keys, pool.texts, strict=True):
        first.setdefault(key, text)
    row_of = {text: row for row, text in enumerate(merged.texts)}
    rows = torch.tensor([row_of[first[key]] for key in keys], device=scores.device)
    if pool.index is None or merged.index is None:
        columns, width = rows.expand(len(scores), -1), len(merged.texts)
    else:
        pool_rows, width = rows[pool.index.clamp(min=0)].unsqueeze(2), merged.index.size(1)
        columns = (pool_rows == merged.index.unsqueeze(1)).int().argmax(2)  # any for padding, whose score is -inf
    best = scores.new_full((len(scores), width), -torch.inf).scatter_reduce(1, columns, scores, "amax")
    return best, replace(merged, sizes=pool.count_candidates(len(scores)))


def find_first_right(scores: Tensor, pool: CandidatePool) -> Tensor:
    """The column of the right candidate that the scores [batch, n] rank first, of each example: [batch]."""
    assert pool.labels is not None
    if pool.relevance is None:
        return pool.labels
    best = scores.masked_fill(pool.relevance <= 0, -torch.inf).max(1)
    return best.indices.where(best.values != -torch.inf, pool.labels)  # else wrong, as the right ones have -inf


def compute_ndcg(scores: Tensor, labels: Tensor) -> Tensor:
    """nDCG of scores and labels [batch, n]: [batch], from 0 to 1.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques" (2002), with log2(1 + rank) as in
    trec_eval: the gain is the label itself. Of equal scores the lower label comes first, nan is -inf.
    """
    k = min(CUTOFF, scores.size(1))
    discounts = 1 / torch.log2(torch.arange(2, k + 2, device=scores.device))
    rising = labels.argsort(dim=1, stable=True)
    comparable = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf).gather(1, rising)
    order = rising.gather(1, comparable.argsort(dim=1, descending=True, stable=True)[:, :k])
    best = labels.topk(k, dim=1).values
    return (labels.gather(1, order) * discounts).sum(1) / (best * discounts).sum(1)


def of_example(rank: int, loss: float, n: int | None, *, hits_at: Sequence[int] = HITS_AT) -> dict[str, float]:
    """The metrics of one example whose label has this rank among n candidates: `loss`, `rank`, `mrr`, R{n}@k, `hits@k`.

    R{n}@k is left out for k >= n, where it is always 1, and without n.
    """
    return {"loss": loss, "rank": float(rank), "mrr": 1 / rank, **_count_hits(rank, n, hits_at)}


def of_search(rank: int | None, n: int, *, top_k: int, hits_at: Sequence[int] = HITS_AT) -> dict[str, float]:
    """The metrics of one example from a search's `top_k` of n candidates; no rank if the label is not among them.

    R{n}@k, for each k up to `top_k` and for `top_k` itself, equals that of scoring everything if the search is
    exact. mrr@K counts labels beyond the K as 0. found_rank is the rank of a label among the K.
    """
    metrics = {} if rank is None else {"found_rank": float(rank)}
    up_to = sorted({*(k for k in hits_at if k <= top_k), top_k})
    return {f"mrr@{top_k}": 0.0 if rank is None else 1 / rank, **metrics, **_count_hits(rank, n, up_to)}


def of_pool(
    scores: Tensor, pool: CandidatePool, *, has_n: bool = True, hits_at: Sequence[int] = HITS_AT
) -> list[dict[str, float]]:
    """The metrics of each example from its masked scores [batch, n]; without `has_n`, as n varies, no R{n}@k."""
    counts = pool.count_candidates(len(scores)) if has_n else [None] * len(scores)
    return compute_metrics(scores, pool, counts, hits_at=hits_at, graded=pool.relevance is not None)


def compute_metrics(
    scores: Tensor,
    pool: CandidatePool,
    counts: Sequence[int | None],
    *,
    hits_at: Sequence[int] = HITS_AT,
    graded: bool = False,
) -> list[dict[str, float]]:
    """The metrics of each example from its scores [batch, n] and number of candidates.

    With several right candidates, the rank is the first one's, and the loss is -log of the sum of their probabilities.
    `graded` adds nDCG@10.
    """
    first, relevance = find_first_right(scores, pool), pool.relevance
    losses = F.cross_entropy(scores, first, reduction="none")
    if relevance is not None:
        losses = scores.logsumexp(1) - scores.masked_fill(relevance <= 0, -torch.inf).logsumexp(1)
    rows = zip(pool_ranks(scores, pool).tolist(), losses.tolist(), counts, strict=True)
    metrics = [of_example(rank, loss, n, hits_at=hits_at) for rank, loss, n in rows]
    if not graded:
        return metrics
    values = compute_ndcg(scores, pool.numbers).tolist()
    return [{**measures, NDCG: value} for measures, value in zip(metrics, values, strict=True)]


def _count_hits(rank: int | None, n: int | None, hits_at: Sequence[int]) -> dict[str, float]:
    hit = {k: float(rank is not None and rank <= k) for k in hits_at}
    recall = {format_recall_name(k, n): value for k, value in hit.items() if n is not None and k < n}
    return recall | {f"hits@{k}": value for k, value in hit.items()}


class Tally:
    """Means over examples, which may come in any number of batches and from several processes."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    def add(self, metrics: Iterable[Mapping[str, float]]) -> None:
        """Adds the metrics of further examples."""
        for values in metrics:
            self.merge({name: (value, 1) for name, value in values.items()})

    def merge(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Adds sums over more examples, with their counts; a count of 0 marks a plain sum."""
        for name, (value, count) in sums.items():
            total, counted = self.sums[name]
            self.sums[name] = total + value, counted + count

    def report(self) -> dict[str, float]:
        """The mean of each metric, in the order of arrival."""
        return {name: total / count if count else total for name, (total, count) in self.sums.items()}
