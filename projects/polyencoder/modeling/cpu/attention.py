"""The faster attention on a CPU.

torch's own kernels are slow at learning in bfloat16: the backward pass of its flash attention takes longer than in
float32, and its plain kernel computes in float32 what comes as bfloat16. That one is also what it takes for dropout of
attention weights. Two matrix products and a softmax, all in the inputs' type, are faster than both.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.modeling.cpu.dropout import dropout

__all__ = ["attention", "plain_attention"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """`scaled_dot_product_attention`, whichever way is faster here. The same heads for all three."""
    learning_in_bf16 = torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    kernel = plain_attention if learning_in_bf16 or dropout_p else F.scaled_dot_product_attention
    return kernel(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, scale=scale)


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` as written in its documentation.

    Args:
        query, key, value: [batch, heads, length, dim].
        attn_mask: bool, True where attention may go, or numbers to add; broadcast to [batch, heads, length, length].
            A query that may go nowhere gets what means nothing, but is finite.

    Returns:
        [batch, heads, length, dim]
    """
    scores = query * (query.size(-1) ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = scores.new_zeros(()).masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        scores = scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p) @ value
