"""Pairwise losses: pairs of an example's candidates of which one has a higher label."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MU = 10.0
"""The weight of NDCG-Loss2 beside LambdaRank in NDCG-Loss2++."""


class Pairs(NamedTuple):
    """Pairs (i, j): i is one of the p right candidates of an example, j any of its n. All tensors are [batch, p, n].

    better: [batch, p], the columns of the i. there: whether i has the higher label, and both are candidates; other
    pairs do not count. differences: s_i - s_j, 0 where the pair does not count.
    """

    better: Tensor
    there: Tensor
    differences: Tensor


def pairs_of(scores: Tensor, labels: Tensor) -> Pairs:
    """The pairs of scores and labels [batch, n]; a score of -inf is padding.

    Only a candidate with a label above 0 is better than another, so that in-batch candidates cost n for each right
    one, not n for each candidate.
    """
    present = scores != -torch.inf
    labels = labels.masked_fill(~present, -1.0)
    most = max(1, int((labels > 0).sum(-1).max())) if len(labels) else 1
    of_better, better = labels.topk(most, dim=-1)
    there = (of_better.unsqueeze(-1) > labels.unsqueeze(-2)) & present.unsqueeze(-2)
    finite = scores.masked_fill(~present, 0)
    differences = finite.gather(-1, better).unsqueeze(-1) - finite.unsqueeze(-2)
    return Pairs(better, there, torch.where(there, differences, 0))


def ranknet(scores: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(s_j - s_i)), the mean over an example's pairs with l_i > l_j: [batch].

    Burges et al., "Learning to rank using gradient descent" (ICML 2005), Equation 3 with the target probability 1, that
    of a known order. The mean in place of the sum makes examples with few and with many candidates equal. Labels count
    by their order alone; 0 without such pairs. `scores` and `labels` are [batch, n]; a score of -inf is padding.
    """
    pairs = pairs_of(scores, labels)
    costs = F.softplus(-pairs.differences).masked_fill(~pairs.there, 0)
    return costs.sum((-2, -1)) / pairs.there.sum((-2, -1)).clamp(min=1)


def lambdaloss(scores: Tensor, labels: Tensor, *, mu: float = MU) -> Tensor:
    """NDCG-Loss2++: the sum of (rho_ij + mu delta_ij) |G_i - G_j| log2(1 + exp(s_j - s_i)) where l_i > l_j: [batch].

    Wang et al., "The LambdaLoss framework for ranking metric optimization" (CIKM 2018), with sigma = 1:
    G_i = (2^l_i - 1) / max DCG, D_k = log2(1 + k), rho_ij = |1 / D_i - 1 / D_j| at the ranks of i and j, which is
    LambdaRank's weight, and delta_ij = |1 / D_|i-j| - 1 / D_(|i-j| + 1)|, which is NDCG-Loss2's. Ranks are those of the
    current scores, constant to the gradient. Equal scores are ranked by their columns.

    Args:
        scores: [batch, n], -inf at padding.
        labels: [batch, n], of any size; padding has none.
        mu: 10, or 0 for LambdaRank.
    """
    pairs = pairs_of(scores, labels)
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(1, order.size(-1) + 1, device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter(-1, order, places)
    gains = _gains(labels.masked_fill(scores == -torch.inf, 0))
    i, j = ranks.gather(-1, pairs.better).unsqueeze(-1), ranks.unsqueeze(-2)
    apart = (i - j).abs().clamp(min=1)
    rho = (_discount(i) - _discount(j)).abs()
    delta = _discount(apart) - _discount(apart + 1)
    worth = (gains.gather(-1, pairs.better).unsqueeze(-1) - gains.unsqueeze(-2)).abs()
    costs = F.softplus(-pairs.differences) / math.log(2)
    return ((rho + mu * delta) * worth * costs).masked_fill(~pairs.there, 0).sum((-2, -1))


def _gains(labels: Tensor) -> Tensor:
    """(2^l - 1) / max DCG: 2^l (1 - 2^-l), exact for small l, in units of 2^(the largest l), which may be large."""
    gains = -torch.expm1(-math.log(2) * labels) * torch.exp2(labels - labels.amax(-1, keepdim=True))
    ideal = gains.sort(-1, descending=True).values
    places = torch.arange(1, labels.size(-1) + 1, device=labels.device)
    best = (ideal * _discount(places)).sum(-1, keepdim=True)
    return gains / best.clamp(min=torch.finfo(gains.dtype).tiny)


def _discount(ranks: Tensor) -> Tensor:
    """1 / D_k of ranks k from 1 on."""
    return 1 / torch.log2(1 + ranks.float())
