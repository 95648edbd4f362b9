"""Listwise losses: the softmax over an example's candidates, against the right ones or against that of the labels."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_loss(scores: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """-log of the probability that the softmax gives to the candidates with a label above 0 together: [batch].

    -log (sum of exp(s_i) over the right candidates / sum of exp(s_j) over all), the summed objective of Clark and
    Gardner, "Simple and effective multi-paragraph reading comprehension" (ACL 2018, "Handling noisy labels"): the model
    need not rank every right candidate high, and one that it ranks high is never pushed down for another. `smoothing`
    is the probability that the wrong candidates share evenly; a row without wrong candidates has no smoothing.

    Args:
        scores: [batch, n], -inf at padding.
        labels: [batch, n], above 0 for right candidates; each row has one or more.
        smoothing: at least 0, below 1.
    """
    logs = torch.log_softmax(scores, dim=-1)
    right = labels > 0
    of_right = logs.masked_fill(~right, -torch.inf).logsumexp(-1)
    if not smoothing:
        return -of_right
    others = (scores > -torch.inf) & ~right
    count = others.sum(-1)
    spread = smoothing * (count > 0)
    of_others = logs.masked_fill(~others, 0).sum(-1) / count.clamp(min=1)
    return -(1 - spread) * of_right - spread * of_others


def smoothed_cross_entropy(scores: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
    """Cross-entropy with 1 - `smoothing` for the label and `smoothing` spread evenly over the other candidates.

    Note 10 of ConveRT: it "means that each positive example in each batch is assigned the probability of 0.8, while the
    remaining probability mass is evenly redistributed across in-batch negative examples". Unlike torch's
    `label_smoothing`, none of it goes to the label. `labels` [batch] are the label's columns; without other candidates
    there is no smoothing.
    """
    return softmax_loss(scores, torch.zeros_like(scores).scatter(-1, labels.unsqueeze(-1), 1.0), smoothing=smoothing)


def listnet(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy between the top-one probabilities of labels and of scores over an example's candidates: [batch].

    Cao et al., "Learning to rank: from pairwise approach to listwise approach" (ICML 2007), with phi = exp and k = 1:
    a list's top-one probabilities are its softmax. A candidate with the label 0 has exp(0) of the mass, so that the
    target is flat among many wrong candidates. `scores` and `labels` are [batch, n]; a score of -inf is padding.
    """
    there = scores != -torch.inf
    lowest = torch.finfo(scores.dtype).min  # its exp is 0, and a row of padding alone has no nan, as with -inf
    target = torch.softmax(labels.masked_fill(~there, lowest), dim=-1)
    logs = torch.log_softmax(scores.masked_fill(~there, lowest), dim=-1)
    return -(target * logs.masked_fill(~there, 0)).sum(-1)
