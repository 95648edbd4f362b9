"""Gradient caching: large batches in the memory of a few texts, with the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from polyencoder.modeling import RankerModel
from polyencoder.modeling.activation_checkpointing import Pieces
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.context import stacked
from polyencoder.text.tokens import TokenBatch, token_batches

__all__ = ["encode"]

T = TypeVar("T")


def encode(
    model: RankerModel, contexts: TokenBatch, candidates: TokenBatch, *, max_tokens: int | None = None
) -> tuple[ContextEncoding, Tensor]:
    """Both sides of a batch, [batch, codes, dim] (`encode_objectives`) and [n, dim], differentiable.

    Args:
        model: the ranker that is trained.
        contexts, candidates: either may have no rows, which cost nothing.
        max_tokens: the most tokens, padding included, whose activations are kept at a time; None for no limit. A side
            with more goes through in pieces of like length, and both sides' activations are computed again for the
            gradients. These are the same as without a limit, but for the order in which dropout draws its numbers and
            the rounding of bfloat16.
    """
    sides = contexts.ids.numel(), candidates.ids.numel()
    split = None if max_tokens is None or max(sides) <= max_tokens else _Split(Pieces(model), max_tokens)
    device = contexts.ids.device
    if not len(candidates):
        vectors = torch.zeros(0, model.dim, device=device)
    else:
        parts, order = _in_pieces(model.encode_candidates, candidates, split)
        vectors = parts[0] if order is None else torch.cat(parts)[order]
    if not len(contexts):
        return ContextEncoding(torch.zeros(0, 1, model.dim, device=device)), vectors
    encoded, order = _in_pieces(model.encode_objectives, contexts, split)
    return encoded[0] if order is None else stacked(encoded).select(order), vectors


class _Split(NamedTuple):
    """The split of a step into pieces of at most `budget` tokens."""

    pieces: Pieces
    budget: int


def _in_pieces(
    encode: Callable[[TokenBatch], T], tokens: TokenBatch, split: _Split | None
) -> tuple[list[T], Tensor | None]:
    """The result of `encode` for each piece, and the place of each row in their concatenation; None for one piece."""
    if split is None:
        return [encode(tokens)], None
    places = token_batches(tokens.mask.sum(1).tolist(), max_tokens=split.budget)
    rows = [torch.tensor(piece, device=tokens.ids.device) for piece in places]
    return [split.pieces(encode, tokens.select(piece)) for piece in rows], torch.argsort(torch.cat(rows))
