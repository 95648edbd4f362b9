"""A batch of sequences packed as token rows, so that token-wise layers compute no padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polyencoder.modeling.tracing import is_traced
from polyencoder.text.batches import group_lengths

GROUP_COST = 64  # fixed cost of one more group in attention, in tokens of padding


@dataclass(frozen=True)
class PackedRows:
    """The positions of packed tokens in a padded batch.

    mask: [batch, length]; the tokens of a sequence are adjacent. indices: [tokens], their positions in the flattened
    batch. parts: the groups of sequences of similar length that attention runs on; empty for a single group. order:
    [batch], the sequences in the order of the parts.
    """

    mask: Tensor
    indices: Tensor
    parts: tuple[PackedRows, ...] = ()
    order: Tensor | None = None

    @classmethod
    def from_mask(cls, mask: Tensor) -> PackedRows:
        """Packs a batch in its order."""
        return cls(mask, mask.flatten().nonzero().squeeze(1))

    @classmethod
    def from_mask_by_length(cls, mask: Tensor) -> PackedRows:
        """Groups by length on a CPU, which saves attention over padding."""
        if is_traced() or mask.device.type != "cpu":
            return cls.from_mask(mask)
        lengths = mask.sum(1)
        groups = group_lengths(lengths.tolist(), pass_cost=GROUP_COST)
        if len(groups) <= 1:
            return cls.from_mask(mask)
        order = torch.tensor([row for group in groups for row in group])
        batch = torch.arange(mask.numel()).view_as(mask)
        lengths_by_group = [lengths[group] for group in order.split([len(group) for group in groups])]
        masks = [torch.arange(max(1, int(rows[-1]))) < rows[:, None] for rows in lengths_by_group]  # ascending lengths
        return cls(mask, batch[order][mask[order]], tuple(cls.from_mask(part) for part in masks), order)

    @property
    def positions(self) -> Tensor:
        """[tokens]: each token's position in its sequence, from 0."""
        return self.take(self.mask.long().cumsum(1) - 1)

    @cached_property
    def distances(self) -> Tensor:
        """[length, length]: j - i."""
        positions = torch.arange(self.mask.size(1), device=self.mask.device)
        return positions[None, :] - positions[:, None]

    @cached_property
    def _is_full(self) -> bool:
        return not is_traced() and len(self.indices) == self.mask.numel()

    def take(self, padded: Tensor) -> Tensor:
        """[batch, length, ...] -> [tokens, ...]."""
        rows = padded.flatten(0, 1)
        return rows if self._is_full else rows[self.indices]

    def put(self, rows: Tensor) -> Tensor:
        """[tokens, dim] -> [batch, length, dim], 0 at padding."""
        batch, length = self.mask.shape
        if self._is_full:
            return rows.view(batch, length, rows.size(-1))
        padded = rows.new_zeros(batch * length, rows.size(-1))
        return padded.index_copy(0, self.indices, rows).view(batch, length, rows.size(-1))

    def apply_each(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Applies a function of tensors [tokens, ...] and their `PackedRows` to each part."""
        if not self.parts:
            return function(*inputs, self)
        pieces = zip(*(tensor.split([len(part.indices) for part in self.parts]) for tensor in inputs), strict=True)
        return torch.cat([function(*piece, part) for piece, part in zip(pieces, self.parts, strict=True)])

    def restore_order(self, texts: Tensor) -> Tensor:
        """Reorders [batch, ...] from the order of the parts to the order of the batch."""
        return texts if self.order is None else texts[self.order.argsort()]
