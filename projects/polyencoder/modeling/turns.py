"""The turns of a context: to which of them each token belongs, and the mean output of each."""

from __future__ import annotations

from torch import Tensor

__all__ = ["turn_means", "turn_numbers"]


def turn_numbers(ids: Tensor, mask: Tensor, *, end: int | None) -> Tensor:
    """The number of each token's turn, [batch, length], below 0 at padding; the token `end` is the last of its turn."""
    if end is None:
        return mask.long() - 1
    ends = ((ids == end) & mask).long()
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
