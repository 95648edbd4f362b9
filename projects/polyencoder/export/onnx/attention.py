"""Attention for graphs alone: the few operators that it is, registered with transformers under a name of its own.

What exporters make of torch's function has a dozen more in each layer: a mask of [batch, 1, length, length], scores
scaled in two places, rows in which nothing is seen. None of these is needed here, and all cost time.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from polyencoder.modeling import RankerModel, attention

__all__ = ["NAME", "for_graphs"]

NAME = "polyencoder-onnx"


def for_graphs(model: RankerModel) -> RankerModel:
    """The ranker with the same weights (no copies of them), whose encoders compute attention so.

    An encoder that computes it in another way than the rankers do, by itself or `eager`, keeps that.
    """
    model = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for tower in model.backbones:
        if tower.model.config._attn_implementation == attention.NAME:
            tower.model.set_attn_implementation(NAME)
    return model.eval()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [batch, heads, length, dim] -> [batch, length, heads, dim], and no weights."""
    scores = query @ key.transpose(2, 3) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (torch.softmax(scores, dim=-1) @ value).transpose(1, 2), None


def _mask(**options: Any) -> Tensor | None:
    """What is added to scores: 0 and the smallest number, [batch, 1, 1, length] where padding alone is not seen."""
    seen: Tensor | None = options.get("attention_mask")
    if seen is None or seen.dim() != 2 or options["mask_function"] is not attention.PADDING_ALONE:
        seen = AttentionMaskInterface()["sdpa"](**options)
        if seen is None:
            return None
    else:
        seen = seen[:, None, None].bool()
    return torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, torch.finfo(torch.float32).min)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
