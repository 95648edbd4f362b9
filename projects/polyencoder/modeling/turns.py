"""The turns of a tokenized context: the turn of each token, and the mean output of each turn."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from polyencoder.config import TurnEnd


def turn_end(separator: Sequence[int]) -> TurnEnd:
    """Converts the separator's tokens to the end of a turn that `turn_numbers` takes."""
    return separator[0] if len(separator) == 1 else tuple(separator) or None


def turn_numbers(ids: Tensor, mask: Tensor, *, end: TurnEnd) -> Tensor:
    """Numbers each token's turn: [batch, length], below 0 at padding. A turn ends with the token or tokens `end`."""
    if end is None:
        return mask.long() - 1
    last, *before = (end,) if isinstance(end, int) else reversed(end)
    is_end = (ids == last) & mask
    for back, token in enumerate(before, start=1):
        is_end = is_end & pad(ids == token, (back, 0))[:, : ids.size(1)]
    ends = is_end.long()
    return (ends.cumsum(1) - ends).masked_fill(~mask, -1)


def turn_means(outputs: Tensor, turn_of: Tensor, numbers: Tensor) -> Tensor:
    """Means of outputs over turns; zeros for a turn without tokens.

    Args:
        outputs: [batch, length, dim].
        turn_of: the turn of each token, [batch, length], below 0 for padding.
        numbers: which turns are averaged, [batch, turns].

    Returns:
        [batch, turns, dim].
    """
    belongs = turn_of.unsqueeze(1) == numbers.unsqueeze(-1)  # [batch, turns, length]
    return (belongs / belongs.sum(-1, keepdim=True).clamp(min=1)).to(outputs.dtype) @ outputs
