"""Scaled dot-product attention on a CPU, by whichever kernel is fastest for the inputs.

torch's flash attention is the fastest, but not for everything: in bfloat16 its backward pass takes four times as long
as in float32, in which it is therefore computed; and it knows no dropout of attention weights. For that torch takes
a plain kernel that computes in float32 what comes as bfloat16: two matrix products and a softmax in the inputs' type
are faster.
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
    if dropout_p:
        return plain_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, scale=scale)
    if query.dtype == torch.float32 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, scale=scale)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    with torch.autocast("cpu", enabled=False):
        output = F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), attn_mask=attn_mask, scale=scale
        )
    return output.to(query.dtype)


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
