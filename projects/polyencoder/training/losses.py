"""Losses of scores [batch, n], one value for each example; a score of -inf is padding, and masked.

Listwise losses compare the softmax over an example's candidates with the right ones or with the labels' softmax;
pairwise ones compare candidates with different labels; pointwise ones compare each score with its own label;
distillation losses compare scores with a teacher's, where -inf means not scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.errors import InputError


def softmax_loss(scores: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """-log of the probability that the softmax gives to the candidates with a label above 0 together: [batch].

    -log (sum of exp(s_i) over the right candidates / sum of exp(s_j) over all), the summed objective of Clark and
    Gardner, "Simple and effective multi-paragraph reading comprehension" (ACL 2018, "Handling noisy labels"): the model
    need not rank every right candidate high, and one that it ranks high is never pushed down for another. `smoothing`
    is the probability that the wrong candidates share evenly, as in note 10 of ConveRT: unlike torch's
    `label_smoothing`, none of it goes to the label. The loss of a row without wrong candidates is 0.

    Args:
        scores: [batch, n], -inf at padding.
        labels: [batch, n], above 0 for right candidates; each row has one or more.
        smoothing: at least 0, below 1.
    """
    logs = torch.log_softmax(scores, dim=-1)
    right = labels > 0
    right_logs = logs.masked_fill(~right, -torch.inf).logsumexp(-1)
    if not smoothing:
        return -right_logs
    wrong = (scores > -torch.inf) & ~right
    wrong_logs = logs.masked_fill(~wrong, 0).sum(-1) / wrong.sum(-1).clamp(min=1)
    return -(1 - smoothing) * right_logs - smoothing * wrong_logs


def listnet(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy between the top-one probabilities of labels and of scores over an example's candidates: [batch].

    Cao et al., "Learning to rank: from pairwise approach to listwise approach" (ICML 2007), with phi = exp and k = 1:
    a list's top-one probabilities are its softmax. A candidate with the label 0 has exp(0) of the mass, so that the
    target is flat among many wrong candidates. `scores` and `labels` are [batch, n]; a score of -inf is padding.
    """
    present = scores != -torch.inf
    lowest = torch.finfo(scores.dtype).min  # its exp is 0, and a row of padding alone has no nan, as with -inf
    target = torch.softmax(labels.masked_fill(~present, lowest), dim=-1)
    logs = torch.log_softmax(scores.masked_fill(~present, lowest), dim=-1)
    return -(target * logs.masked_fill(~present, 0)).sum(-1)


MU = 10.0
"""The weight of NDCG-Loss2 beside LambdaRank in NDCG-Loss2++."""


class Pairs(NamedTuple):
    """Pairs (i, j): i is one of the p right candidates of an example, j any of its n. All tensors are [batch, p, n].

    better: [batch, p], the columns of the i. ordered: whether i has the higher label, and both are candidates; other
    pairs do not count. differences: s_i - s_j, 0 where the pair does not count.
    """

    better: Tensor
    ordered: Tensor
    differences: Tensor


def make_pairs(scores: Tensor, labels: Tensor) -> Pairs:
    """The pairs of scores and labels [batch, n]; a score of -inf is padding.

    Only a candidate with a label above 0 is better than another, so that in-batch candidates cost n for each right
    one, not n for each candidate.
    """
    present = scores != -torch.inf
    labels = labels.masked_fill(~present, -1.0)
    num_better = max(1, int((labels > 0).sum(-1).max())) if len(labels) else 1
    better_labels, better = labels.topk(num_better, dim=-1)
    ordered = (better_labels.unsqueeze(-1) > labels.unsqueeze(-2)) & present.unsqueeze(-2)
    finite = scores.masked_fill(~present, 0)
    differences = finite.gather(-1, better).unsqueeze(-1) - finite.unsqueeze(-2)
    return Pairs(better, ordered, torch.where(ordered, differences, 0))


def ranknet(scores: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(s_j - s_i)), the mean over an example's pairs with l_i > l_j: [batch].

    Burges et al., "Learning to rank using gradient descent" (ICML 2005), Equation 3 with the target probability 1, that
    of a known order. The mean in place of the sum makes examples with few and with many candidates equal. Labels count
    by their order alone; 0 without such pairs. `scores` and `labels` are [batch, n]; a score of -inf is padding.
    """
    pairs = make_pairs(scores, labels)
    costs = F.softplus(-pairs.differences).masked_fill(~pairs.ordered, 0)
    return costs.sum((-2, -1)) / pairs.ordered.sum((-2, -1)).clamp(min=1)


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
    pairs = make_pairs(scores, labels)
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    positions = torch.arange(1, order.size(-1) + 1, device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter(-1, order, positions)
    gains = _compute_gains(labels.masked_fill(scores == -torch.inf, 0))
    i, j = ranks.gather(-1, pairs.better).unsqueeze(-1), ranks.unsqueeze(-2)
    apart = (i - j).abs().clamp(min=1)
    rho = (_compute_discount(i) - _compute_discount(j)).abs()
    delta = _compute_discount(apart) - _compute_discount(apart + 1)
    worth = (gains.gather(-1, pairs.better).unsqueeze(-1) - gains.unsqueeze(-2)).abs()
    costs = F.softplus(-pairs.differences) / math.log(2)
    return ((rho + mu * delta) * worth * costs).masked_fill(~pairs.ordered, 0).sum((-2, -1))


def _compute_gains(labels: Tensor) -> Tensor:
    """(2^l - 1) / max DCG: 2^l (1 - 2^-l), exact for small l, in units of 2^(the largest l), which may be large."""
    gains = -torch.expm1(-math.log(2) * labels) * torch.exp2(labels - labels.amax(-1, keepdim=True))
    ideal = gains.sort(-1, descending=True).values
    ranks = torch.arange(1, labels.size(-1) + 1, device=labels.device)
    best = (ideal * _compute_discount(ranks)).sum(-1, keepdim=True)
    return gains / best.clamp(min=torch.finfo(gains.dtype).tiny)


def _compute_discount(ranks: Tensor) -> Tensor:
    return 1 / torch.log2(1 + ranks.float())


def bce(scores: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy between sigmoid(score) and the label, the mean over each example's candidates: [batch].

    Nogueira and Cho, "Passage re-ranking with BERT" (2019), Equation 1, with the mean in place of the sum. `labels`
    [batch, n] are probabilities; a score of -inf is padding.

    Raises:
        InputError: a label is above 1.
    """
    if (labels > 1).any():
        raise InputError(f"objective bce reads labels as probabilities, but one is {float(labels.max()):g}")
    present = scores != -torch.inf
    return _average(
        F.binary_cross_entropy_with_logits(scores.masked_fill(~present, 0), labels, reduction="none"), present
    )


def mse(scores: Tensor, labels: Tensor) -> Tensor:
    """Squared difference of score and label, the mean over each example's candidates: [batch].

    Cossock and Zhang, "Subset ranking using regression" (COLT 2006): least squares, with equal weights.
    `labels` [batch, n] are any numbers in the scores' unit; a score of -inf is padding.
    """
    present = scores != -torch.inf
    return _average((scores.masked_fill(~present, 0) - labels).square(), present)


def _average(values: Tensor, present: Tensor) -> Tensor:
    return values.masked_fill(~present, 0).sum(-1) / present.sum(-1).clamp(min=1)


LABEL_LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"bce": bce, "mse": mse, "ranknet": ranknet, "listnet": listnet, "lambdaloss": lambdaloss}
)
"""The objectives besides the softmax, by their names in the settings."""


def distillation_kl(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T^2 KL(p || q), p and q the softmax over the candidates of the teacher's scores / T and of `scores` / T.

    Section 2 of Hinton et al., "Distilling the knowledge in a neural network" (2015): with the factor T^2 the gradient
    is of the same size at any temperature.
    """
    taught = teacher > -torch.inf
    p = torch.log_softmax(teacher / temperature, dim=-1)
    q = torch.log_softmax(scores.masked_fill(~taught, -torch.inf) / temperature, dim=-1)
    terms = p.exp() * (p - q).masked_fill(~taught, 0)  # else a candidate without a score has 0 * (-inf - -inf)
    return temperature**2 * terms.sum(-1)


def margin_mse(scores: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of the margins between the label and each other candidate, against the teacher's margins.

    Equation 3 of Hofstätter et al., "Improving efficient neural ranking models with cross-architecture knowledge
    distillation" (2020), for any number of negatives. `labels` [batch] are the columns of the labels. 0 without
    negatives.
    """
    columns = labels.unsqueeze(-1)
    negative = (teacher > -torch.inf).scatter(-1, columns, False)
    compared = negative.scatter(-1, columns, True)
    student, teacher = scores.masked_fill(~compared, 0), teacher.masked_fill(~compared, 0)
    errors = (student.gather(-1, columns) - student) - (teacher.gather(-1, columns) - teacher)
    squares = errors.square() * negative
    return squares.sum(-1) / negative.sum(-1).clamp(min=1)
