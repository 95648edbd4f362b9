"""The faster attention on a CPU.

torch's own kernels are slow at learning in bfloat16: the backward pass of its flash attention takes longer than in
float32, and its plain kernel computes in float32 what comes as bfloat16. That one is also what it takes for dropout of
attention weights. Two matrix products and a softmax, all in the inputs' type, are faster than both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.modeling.cpu.dropout import dropout

__all__ = ["attention", "plain_attention"]


def attention(*inputs: Any, **options: Any) -> Tensor:
    """`scaled_dot_product_attention`, whichever way is faster here."""
    learning_in_bf16 = torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    plain = (learning_in_bf16 or options.get("dropout_p")) and not options.get("enable_gqa")
    output: Tensor = (plain_attention if plain else F.scaled_dot_product_attention)(*inputs, **options)
    return output


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` as written in its documentation.

    Args:
        query, key, value: [batch, heads, length, dim], with the same number of heads (no `enable_gqa`).
        attn_mask: bool, True where attention may go, or numbers to add; broadcast to [batch, heads, length, length].
            A query that may go nowhere gets what means nothing, but is finite.

    Returns:
        [batch, heads, length, dim]
    """
    assert not enable_gqa
    scores = query * (query.size(-1) ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if is_causal:
        scores = scores + scores.new_full(scores.shape[-2:], -torch.inf).triu(1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = scores.new_zeros(()).masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        scores = scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p) @ value
