"""Gradient caching: large batches in the memory of a few texts, with the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from polyencoder.modeling import SeparableRanker
from polyencoder.modeling.activation_checkpointing import recomputed
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.context import stacked
from polyencoder.text.tokens import TokenBatch, token_batches

__all__ = ["encode"]

T = TypeVar("T")


def encode(
    model: SeparableRanker, contexts: TokenBatch, candidates: TokenBatch, *, max_tokens: int | None = None
) -> tuple[ContextEncoding, Tensor]:
    """Both sides of a batch, [batch, codes, dim] (`encode_objectives`) and [n, dim], differentiable.

    Args:
        model: the ranker that learns.
        contexts, candidates: either may have no rows, which cost nothing.
        max_tokens: the most tokens, padding included, whose activations are kept at a time; None for no limit. A side
            with more goes through in pieces of like length, and both sides' activations are computed again for the
            gradients. These are the same as without a limit, but for the order in which dropout draws its numbers and
            the rounding of bfloat16.
    """
    fits = max_tokens is None or max(contexts.ids.numel(), candidates.ids.numel()) <= max_tokens
    budget = None if fits else max_tokens
    vectors = _encode_candidates(model, candidates, budget)
    return _encode_contexts(model, contexts, budget), vectors


def _encode_candidates(model: SeparableRanker, tokens: TokenBatch, budget: int | None) -> Tensor:
    if not len(tokens):
        return torch.zeros(0, model.dim, device=tokens.ids.device)
    if budget is None:
        return model.encode_candidates(tokens)
    parts, order = _in_pieces(model.encode_candidates, tokens, budget)
    return torch.cat(parts)[order]


def _encode_contexts(model: SeparableRanker, tokens: TokenBatch, budget: int | None) -> ContextEncoding:
    if not len(tokens):
        return ContextEncoding(torch.zeros(0, 1, model.dim, device=tokens.ids.device))
    if budget is None:
        return model.encode_objectives(tokens)
    parts, order = _in_pieces(model.encode_objectives, tokens, budget)
    return stacked(parts).select(order)


def _in_pieces(encode: Callable[[TokenBatch], T], tokens: TokenBatch, budget: int) -> tuple[list[T], Tensor]:
    """What `encode` gives for pieces of at most `budget` tokens, and the place of each row in their concatenation."""
    places = token_batches(tokens.mask.sum(1).tolist(), max_tokens=budget)
    rows = [torch.tensor(piece, device=tokens.ids.device) for piece in places]
    return [recomputed(encode, tokens.select(piece)) for piece in rows], torch.argsort(torch.cat(rows))
