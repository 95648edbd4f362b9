"""A batch of contexts taken apart: the last utterances, and what was said before them where there is any."""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.text.tokens import TokenBatch

__all__ = ["immediate_and_extra"]


def immediate_and_extra(tokens: TokenBatch, *, separator: int) -> tuple[TokenBatch, TokenBatch, Tensor]:
    """Both texts of contexts, which the first separator divides (`TextEncoder`, truncation `recent_first`).

    Returns:
        The last utterances [batch, length]; the texts before them [rows, length], of those contexts that have any; and
        which these are, [rows].
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
