"""Multi-head attention over the codes, folded into vectors of the context alone.

ParlAI's `poly_attention_type` multihead attends over the codes y_1..y_m with the candidate c as the query of h heads,
each with its rows of the projections Q, K, V and its columns of the output O:

    p_h = softmax_i((Q_h c + q_h) . (K_h y_i + k_h) / sqrt(dim / heads))
    score = (o + sum_h O_h sum_i p_hi (V_h y_i + v_h)) . c

Both products with c can be moved to the context's side. With

    key    k_hi = Q_h^T (K_h y_i + k_h) / sqrt(dim / heads)      bias b_hi = q_h . (K_h y_i + k_h) / sqrt(dim / heads)
    value  l_hi = O_h (V_h y_i + v_h) + o / heads

score = sum_h sum_i p_hi (l_hi . c) with p_h = softmax_i(k_hi . c + b_hi): two inner products per code and head with
the candidate, whose vector is the same as without heads. So `[batch, candidates, dim]` is not needed here either, and
candidates are indexed as for any poly-encoder. But the weights do not depend on the values l: the largest value gives
no bound on the score.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyencoder.errors import InputError


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of multi-head attention, from which attention weights are computed.

    Args:
        vectors: [batch, codes, dim], where `codes` counts the heads of each code, consecutively, as in the values.
        biases: [batch, codes], added to their products with a candidate.
        heads: the number of heads, each with its own softmax.

    Raises:
        InputError: if a shape does not fit.
    """

    vectors: Tensor
    biases: Tensor
    heads: int

    def __post_init__(self) -> None:
        if self.heads < 1 or self.vectors.size(1) % self.heads or self.biases.shape != self.vectors.shape[:2]:
            shapes = f"keys {list(self.vectors.shape)} with biases {list(self.biases.shape)}"
            raise InputError(f"{shapes} are not those of {self.heads} heads")


def attended_by_heads(values: Tensor, logits: Tensor, *, heads: int) -> Tensor:
    """sum_h sum_i p_hi l_hi over the last dimension, with a softmax per head: [..., codes] -> [...]."""
    by_head = (-1, heads)
    weights = logits.unflatten(-1, by_head).softmax(dim=-2)
    return (weights * values.unflatten(-1, by_head)).sum(dim=(-2, -1))
