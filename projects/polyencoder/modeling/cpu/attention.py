"""Scaled dot-product attention on a CPU, with the fastest kernel for the inputs.

torch's flash attention is the fastest, with two exceptions: in bfloat16 its backward pass takes four times as long as
in float32, so it is computed in float32; and it has no attention dropout. torch's fallback for dropout goes through
memory for each of many small steps. Here a few heads at a time go through all steps in the processor's cache, in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyencoder.modeling.cpu.dropout import decides, draw, kept, raised

__all__ = ["attention", "attention_with_dropout"]

CACHED = 2**17  # attention weights processed together, per thread


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` with the faster kernel; the same number of heads in all three."""
    needs_mask_gradient = attn_mask is not None and attn_mask.requires_grad  # which ours does not compute
    if decides(dropout_p) and not needs_mask_gradient:
        return attention_with_dropout(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, scale=scale)
    options: dict[str, Any] = {"dropout_p": dropout_p, "scale": scale}
    if query.dtype == torch.float32 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    with torch.autocast("cpu", enabled=False):
        output = F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), attn_mask=attn_mask, **options
        )
    return output.to(query.dtype)


def attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float,
    scale: float | None = None,
) -> Tensor:
    """dropout(softmax(scale * query @ key.T + mask)) @ value, in the dtype of the inputs.

    Args:
        query, key, value: [batch, heads, length, dim].
        attn_mask: bool (False masks) or a bias; broadcast to [batch, heads, length, length]. The output of a query with
            all keys masked is arbitrary, but finite.
        dropout_p: the dropout rate, neither 0 nor 1 when rounded to 1 / 65,536.

    Returns:
        [batch, heads, length, dim]
    """
    batch, heads, *_ = query.shape
    scale = query.size(-1) ** -0.5 if scale is None else scale
    with torch.autocast("cpu", enabled=False):
        inputs = [tensor.flatten(0, 1).float() for tensor in (query, key, value)]
        output: Tensor = _Dropped.apply(*inputs, _added(attn_mask, batch, heads), scale, dropout_p)
    return output.unflatten(0, (batch, heads)).to(query.dtype)


def _added(mask: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """A mask as a bias of the scores [batch x heads, length, length], expanded no more than needed."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
    mask = mask.float()[(None,) * (4 - mask.dim())]
    return mask.flatten(0, 1) if mask.size(0) == mask.size(1) == 1 else mask.expand(batch, heads, -1, -1).flatten(0, 1)


class _Dropped(torch.autograd.Function):
    """Attention with dropout over [heads, length, dim]; saves the weights and 16 random bits for each."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, scale: float, p: float
    ) -> Tensor:
        weights = query.new_empty(len(query), query.size(1), key.size(1))
        numbers, output = draw(weights.shape), torch.empty_like(value)
        # The factors are applied to the smaller tensors, not to the weights
        query, value = query * scale, value * raised(p)
        for heads in _cached(weights):
            part = weights[heads]
            torch.bmm(query[heads], key[heads].mT, out=part)
            if added is not None:
                part += added if len(added) == 1 else added[heads]
            torch.softmax(part, -1, out=part)
            torch.bmm(kept(numbers[heads], p).mul_(part), value[heads], out=output[heads])
        ctx.save_for_backward(query, key, value, weights, numbers)
        ctx.scale, ctx.p = scale, p
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, numbers = ctx.saved_tensors
        of_query, of_key, of_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        for heads in _cached(weights):
            part, of_output, chosen = weights[heads], gradient[heads], kept(numbers[heads], ctx.p)
            dropped = part * chosen
            torch.bmm(dropped.mT, of_output, out=of_value[heads])
            of_weights = torch.bmm(of_output, value[heads].mT, out=dropped).mul_(chosen)
            # of the softmax: w * (g - sum(w * g))
            of_scores = of_weights.sub_(torch.mul(of_weights, part, out=chosen).sum(-1, keepdim=True)).mul_(part)
            torch.bmm(of_scores, key[heads], out=of_query[heads])
            torch.bmm(of_scores.mT, query[heads], out=of_key[heads])
        return of_query.mul_(ctx.scale), of_key, of_value.mul_(raised(ctx.p)), None, None, None


def _cached(weights: Tensor) -> Iterator[slice]:
    """Slices of the heads [n, length, length] that fit the caches."""
    step = max(1, CACHED * torch.get_num_threads() // max(1, weights.shape[1:].numel()))
    return (slice(start, start + step) for start in range(0, len(weights), step))
