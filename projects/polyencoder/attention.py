"""Another attention inside models that others wrote, and one for learning in bfloat16 on a CPU.

There torch's own kernels are slow: the backward pass of its flash attention takes longer than in float32, and its plain
kernel computes in float32 what comes as bfloat16. Two matrix products and a softmax, all in bfloat16, are faster than
both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["AttendWith", "plain_attention"]


class AttendWith(TorchFunctionMode):
    """Within it `scaled_dot_product_attention` is another function, whichever model calls it."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.scaled_dot_product_attention and not (kwargs or {}).get("enable_gqa"):
            return self.attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """`scaled_dot_product_attention` as written in its documentation.

    Args:
        query, key, value: [batch, heads, length, dim].
        attn_mask: bool, True where attention may go, or numbers to add; broadcast to [batch, heads, length, length].

    Returns:
        [batch, heads, length, dim]
    """
    scores = query * (query.size(-1) ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if is_causal:
        scores = scores + scores.new_full(scores.shape[-2:], -torch.inf).triu(1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = scores.new_zeros(()).masked_fill(~attn_mask, -torch.inf)
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights @ value
