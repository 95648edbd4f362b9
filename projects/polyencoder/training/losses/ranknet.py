"""RankNet: a logistic loss of each pair of candidates with different labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from polyencoder.training.losses.pairs import pairs_of

__all__ = ["ranknet"]


def ranknet(scores: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(s_j - s_i)), the mean over an example's pairs with l_i > l_j: [batch].

    Burges et al., "Learning to rank using gradient descent" (ICML 2005), Equation 3 with the target probability 1, that
    of a known order. The mean in place of the sum makes examples with few and with many candidates equal. Labels count
    by their order alone; 0 without such pairs. `scores` and `labels` are [batch, n]; a score of -inf is padding.
    """
    pairs = pairs_of(scores, labels)
    costs = F.softplus(-pairs.differences).masked_fill(~pairs.there, 0)
    return costs.sum((-2, -1)) / pairs.there.sum((-2, -1)).clamp(min=1)
