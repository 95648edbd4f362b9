"""Multi-head attention over the codes, as vectors of the context alone.

ParlAI's `poly_attention_type` multihead attends over the codes y_1..y_m with the candidate c as the query of h heads,
each with its rows of the projections Q, K, V and its columns of the output O:

    p_h = softmax_i((Q_h c + q_h) . (K_h y_i + k_h) / sqrt(dim / heads))
    score = (o + sum_h O_h sum_i p_hi (V_h y_i + v_h)) . c

Both products with c can be moved to the side of the context. With

    key    k_hi = Q_h^T (K_h y_i + k_h) / sqrt(dim / heads)      bias b_hi = q_h . (K_h y_i + k_h) / sqrt(dim / heads)
    value  l_hi = O_h (V_h y_i + v_h) + o / heads

it is score = sum_h sum_i p_hi (l_hi . c) with p_h = softmax_i(k_hi . c + b_hi): for each code and head two inner
products with the candidate, whose vector is what it is without heads. So `[batch, candidates, dim]` is not needed here
either, and an index of candidates is that of any poly-encoder. Only, a weight p has nothing to do with the value l that
it weighs: no bound on the score follows from the largest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyencoder.errors import InputError

__all__ = ["Keys", "attended_by_heads"]


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys that attention weights are computed with, in place of the vectors of contexts.

    Args:
        vectors: [batch, codes, dim], for each code one after the other those of all heads, like the context's vectors.
        biases: [batch, codes], added to their products with a candidate.
        heads: how many; the weights of each are a softmax of their own.

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
    """sum_h sum_i p_hi l_hi over the last dimension, of a softmax for each head: [..., codes] -> [...]."""
    by_head = (-1, heads)
    weights = logits.unflatten(-1, by_head).softmax(dim=-2)
    return (weights * values.unflatten(-1, by_head)).sum(dim=(-2, -1))
