"""Splits contexts into the last utterance and the earlier ones (extra contexts), and names their vectors."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from polyencoder.config import ContextVector
from polyencoder.text.tokens import TokenBatch

CONTEXT_VECTORS: tuple[ContextVector, ...] = get_args(ContextVector)
"""The vectors of both, the last utterance and those before it: h_xz, h_x and h_z of Figure 2."""


def split_contexts(tokens: TokenBatch, *, separator: int) -> tuple[TokenBatch, TokenBatch, Tensor]:
    """Splits contexts at the first separator (`TextEncoder`, truncation `recent_first`).

    Returns:
        The last utterances [batch, length]; the extra contexts [rows, length], for contexts that have one; and these
        contexts' rows, [rows].
    """
    separators = (tokens.ids == separator) & tokens.mask
    behind = separators.cumsum(1) > 0
    last = TokenBatch(tokens.ids, tokens.mask & ~behind)
    earlier = tokens.mask & behind & ~separators
    rows = earlier.any(1).nonzero().squeeze(1)
    if not len(rows):
        return last, TokenBatch(tokens.ids[:0], tokens.mask[:0]), rows
    everyone = torch.arange(len(tokens), device=tokens.ids.device)
    begins = separators[rows].int().argmax(1, keepdim=True) + 1
    lengths = earlier[rows].sum(1, keepdim=True)
    columns = torch.arange(int(lengths.max()), device=tokens.ids.device)
    ids = tokens.ids[rows].gather(1, (begins + columns).clamp(max=tokens.ids.size(1) - 1))
    return last.select(everyone), TokenBatch(ids, columns < lengths), rows
