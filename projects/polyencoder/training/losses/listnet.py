"""ListNet: cross-entropy between the softmaxes of labels and of scores."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["listnet"]


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
