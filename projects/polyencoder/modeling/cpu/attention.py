"""Scaled dot-product attention on a CPU, with the fastest kernel for the inputs.

torch's flash attention is the fastest, with three exceptions: in bfloat16 its backward pass takes four times as long as
in float32, so it is computed in float32; and it has neither attention dropout nor the gradient of a bias. torch's
fallback goes through memory for each of many small steps. Here a few heads at a time go through all steps in the
processor's cache, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyencoder.modeling.cpu.modules import compute_factor, compute_keep_mask, draw, is_random

CACHED = 2**17  # attention weights processed together, per thread


def apply_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` with the faster kernel; `bias`, [heads, length, length], is added to scores."""
    needs_mask_gradient = attn_mask is not None and attn_mask.requires_grad  # which ours does not compute
    trains_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    if (is_random(dropout_p) and not needs_mask_gradient) or (trains_bias and dropout_p == 0):
        return attend_by_heads(query, key, value, attn_mask=attn_mask, bias=bias, dropout_p=dropout_p, scale=scale)
    options: dict[str, Any] = {"dropout_p": dropout_p, "scale": scale}
    if bias is not None:
        attn_mask = combine_bias(bias.to(query.dtype), attn_mask)
    if query.dtype == torch.float32 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    with torch.autocast("cpu", enabled=False):
        output = F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), attn_mask=attn_mask, **options
        )
    return output.to(query.dtype)


def combine_bias(bias: Tensor, mask: Tensor | None) -> Tensor:
    """Combines a bias [heads, length, length] and a bool mask of the keys: [1 or batch, heads, length, length]."""
    return bias.unsqueeze(0) if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)


def attend_by_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """dropout(softmax(scale * query @ key.T + bias + mask)) @ value, in the dtype of the inputs.

    Args:
        query, key, value: [batch, heads, length, dim].
        attn_mask: bool (False masks) or a bias; broadcast to [batch, heads, length, length]. The output of a query with
            all keys masked is arbitrary, but finite. Gets no gradient.
        dropout_p: the dropout rate: 0, or neither 0 nor 1 when rounded to 1 / 65,536.
        bias: [heads, length, length], the same for all sequences; gets a gradient.

    Returns:
        [batch, heads, length, dim]
    """
    batch, heads, *_ = query.shape
    scale = query.size(-1) ** -0.5 if scale is None else scale
    with torch.autocast("cpu", enabled=False):
        inputs = [tensor.flatten(0, 1).float() for tensor in (query, key, value)]
        output: Tensor = _HeadAttention.apply(*inputs, _expand_mask(attn_mask, batch, heads), bias, scale, dropout_p)
    return output.unflatten(0, (batch, heads)).to(query.dtype)


def _expand_mask(mask: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """A mask as a bias of the scores [batch x heads, length, length], expanded no more than needed."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
    mask = mask.float()[(None,) * (4 - mask.dim())]
    return mask.flatten(0, 1) if mask.size(0) == mask.size(1) == 1 else mask.expand(batch, heads, -1, -1).flatten(0, 1)


class _HeadAttention(torch.autograd.Function):
    """Attention over [batch x heads, length, dim]; saves the weights, and 16 random bits for each with dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        scale: float,
        p: float,
    ) -> Tensor:
        weights = query.new_empty(len(query), query.size(1), key.size(1))
        numbers, output = draw(weights.shape) if p else None, torch.empty_like(value)
        # The factors are applied to the smaller tensors, not to the weights
        query, value = query * scale, value * compute_factor(p)
        for heads in _iter_cached(weights, bias):
            part = weights[heads]
            torch.bmm(query[heads], key[heads].mT, out=part)
            if mask is not None:
                part += mask if len(mask) == 1 else mask[heads]
            if bias is not None:
                head_bias, scores = _match_heads(bias, part, heads)
                scores += head_bias
            torch.softmax(part, -1, out=part)
            torch.bmm(
                part if numbers is None else compute_keep_mask(numbers[heads], p).mul_(part),
                value[heads],
                out=output[heads],
            )
        ctx.save_for_backward(query, key, value, weights, numbers, bias)
        ctx.scale, ctx.p = scale, p
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, numbers, bias = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[4] else None
        for heads in _iter_cached(weights, bias):
            part, grad_output = weights[heads], gradient[heads]
            keep_mask = None if numbers is None else compute_keep_mask(numbers[heads], ctx.p)
            torch.bmm((part if keep_mask is None else part * keep_mask).mT, grad_output, out=grad_value[heads])
            # With `out`, autocast casts nothing
            grad_weights = torch.bmm(grad_output, value[heads].mT, out=torch.empty_like(part))
            if keep_mask is not None:
                grad_weights.mul_(keep_mask)
            # of the softmax: w * (g - sum(w * g))
            grad_scores = grad_weights.sub_((grad_weights * part).sum(-1, keepdim=True)).mul_(part)
            if grad_bias is not None:
                grad_heads, by_sequence = _match_heads(grad_bias, grad_scores, heads)
                grad_heads += by_sequence.sum(0)
            torch.bmm(grad_scores, key[heads], out=grad_query[heads])
            torch.bmm(grad_scores.mT, query[heads], out=grad_key[heads])
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_query.mul_(ctx.scale), grad_key, grad_value.mul_(compute_factor(ctx.p)), None, grad_bias, None, None


def _iter_cached(weights: Tensor, bias: Tensor | None) -> Iterator[slice]:
    """Slices of [batch x heads, length, length] that fit the caches; with a bias, whole sequences or equal parts."""
    step = max(1, CACHED * torch.get_num_threads() // max(1, weights.shape[1:].numel()))
    if bias is not None and step > len(bias):
        step -= step % len(bias)
    while bias is not None and step % len(bias) and len(bias) % step:
        step -= 1
    return (slice(start, start + step) for start in range(0, len(weights), step))


def _match_heads(bias: Tensor, part: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
    """The heads [n, length, length] of the bias that a slice has, and the slice as [sequences, n, length, length]."""
    count = min(len(part), len(bias))
    first = heads.start % len(bias)
    return bias[first : first + count], part.unflatten(0, (-1, count))
