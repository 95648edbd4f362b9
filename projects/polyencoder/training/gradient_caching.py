"""Gradient caching: the gradients of large batches in the memory of a few texts."""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.modeling.activation_checkpointing import Pieces, apply_in_pieces
from polyencoder.modeling.base import RankerModel
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.context import stack_contexts
from polyencoder.text.tokens import TokenBatch


def encode(
    model: RankerModel, contexts: TokenBatch, candidates: TokenBatch, *, max_tokens: int | None = None
) -> tuple[ContextEncoding, Tensor]:
    """Encodes contexts [batch, codes, dim] (`encode_objectives`) and candidates [n, dim], differentiably.

    Args:
        contexts, candidates: either may be empty.
        max_tokens: the most tokens, with padding, whose activations are kept at a time; None for no limit. A larger
            side is encoded in chunks of similar length, and activations are recomputed in the backward pass. Gradients
            are the same, except for dropout's random numbers and bfloat16 rounding.
    """
    sides = contexts.ids.numel(), candidates.ids.numel()
    pieces = None if max_tokens is None or max(sides) <= max_tokens else Pieces(model)
    device = contexts.ids.device
    if not len(candidates):
        vectors = torch.zeros(0, model.dim, device=device)
    else:
        parts, order = apply_in_pieces(model.encode_candidates, candidates, pieces, max_tokens=max_tokens)
        vectors = parts[0] if order is None else torch.cat(parts)[order]
    if not len(contexts):
        return ContextEncoding(torch.zeros(0, 1, model.dim, device=device)), vectors
    encoded, order = apply_in_pieces(model.encode_objectives, contexts, pieces, max_tokens=max_tokens)
    return encoded[0] if order is None else stack_contexts(encoded).select(order), vectors
