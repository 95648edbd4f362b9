"""Token sequences as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyencoder.text.batches import pad_arrays


@dataclass(frozen=True)
class TokenBatch:
    """Token sequences padded on the right: ids [batch, length] int64, mask (True: token), segments (None: all 0)."""

    ids: Tensor
    mask: Tensor
    segments: Tensor | None = None

    def __len__(self) -> int:
        return self.ids.size(0)

    def to(self, device: torch.device | str) -> TokenBatch:
        segments = None if self.segments is None else self.segments.to(device, non_blocking=True)
        return TokenBatch(self.ids.to(device, non_blocking=True), self.mask.to(device, non_blocking=True), segments)

    def select(self, rows: Tensor) -> TokenBatch:
        """Selects rows, cut to the longest of them."""
        mask = self.mask[rows]
        width = max(int(mask.sum(1).max()), 1)
        segments = None if self.segments is None else self.segments[rows, :width]
        return TokenBatch(self.ids[rows, :width], mask[:, :width], segments)

    def list_sequences(self) -> list[list[int]]:
        """The sequences without their padding."""
        lengths = self.mask.sum(1).tolist()
        return [row[:length] for row, length in zip(self.ids.tolist(), lengths, strict=True)]


def pad(
    sequences: Sequence[Sequence[int]], *, pad_id: int, segments: Sequence[Sequence[int]] | None = None
) -> TokenBatch:
    """Stacks sequences of token ids into a `TokenBatch` as long as the longest of them."""
    ids, mask = pad_arrays(sequences, pad_id=pad_id)
    kinds = None if segments is None else torch.from_numpy(pad_arrays(segments, pad_id=0)[0])
    return TokenBatch(torch.from_numpy(ids), torch.from_numpy(mask), kinds)
