"""Orders candidates by score, then by position; a running top-k over chunks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.errors import InputError


class TopK(NamedTuple):
    """The best candidates of each context, best first."""

    scores: Tensor
    """[batch, k], fp32 or float64."""
    indices: Tensor
    """int64 [batch, k], row numbers of the candidates."""


class RunningTopK:
    """Top-k over chunks of candidates; equal scores keep the order of arrival."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.best: TopK | None = None
        """The best so far, at most k; None before the first chunk."""

    def add(self, scores: Tensor, indices: Tensor) -> None:
        """Adds the `scores` [batch, n] of the candidates in `indices`, int64 [n]. A nan counts as -inf."""
        scores, best, least = comparable(scores), self.best, self.least
        # Almost all candidates are below the kept ones. The others of any context are appended in the order of their
        # indices, so that the stable sort puts the lowest index first among equals.
        if least is not None:
            promising = scores > least.unsqueeze(1)
        else:
            promising = scores >= scores.topk(min(self.k, scores.size(1))).values[:, -1:]
        columns = promising.any(dim=0).nonzero().squeeze(1)
        if columns.numel() == 0:
            return
        found = TopK(scores[:, columns], indices[columns].expand(scores.size(0), -1))
        if best is not None:
            found = TopK(torch.cat([best.scores, found.scores], 1), torch.cat([best.indices, found.indices], 1))
        self.best = ranked(found, self.k)

    @property
    def least(self) -> Tensor | None:
        """[batch]: the k-th best score, which a new one must exceed; None while there are fewer."""
        best = self.best
        return None if best is None or best.scores.size(1) < self.k else best.scores[:, -1]


def ranked(found: TopK, k: int) -> TopK:
    """Sorts and keeps the k best; the sort is stable."""
    scores, order = found.scores.sort(dim=1, descending=True, stable=True)
    return TopK(scores[:, :k], found.indices.gather(1, order[:, :k]))


def comparable(scores: Tensor) -> Tensor:
    """Replaces nan by -inf, so that scores can be sorted."""
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row [..., n], best first, and their columns: both [..., min(k, n)].

    Equal scores are ordered by column; `topk` orders them arbitrarily. A nan counts as -inf, as in `search`.
    """
    scores = comparable(scores)
    k = min(k, scores.size(-1))
    values, columns = scores.topk(k)
    tied_within = (values[..., 1:] == values[..., :-1]).any()
    if k and (tied_within or ((scores >= values[..., -1:]).sum(-1) > k).any()):
        ordered, columns = scores.sort(dim=-1, descending=True, stable=True)
        return ordered[..., :k], columns[..., :k]
    return values, columns


def check_scores(scores: Tensor) -> None:
    """Raises InputError if a score is nan."""
    if scores.isnan().any():
        raise InputError("the model's scores are nan: its weights are damaged, or overflow")
