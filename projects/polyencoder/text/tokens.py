"""Token sequences as tensors: padding, batches by token budget, groups of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

PASS_COST = 256  # fixed cost of one pass through a model, in tokens


@dataclass(frozen=True)
class TokenBatch:
    """Token sequences, padded on the right to the longest of them.

    ids: [batch, length] int64; mask: [batch, length] bool, True on real tokens; segments: [batch, length] int64 or None
    (all zero).
    """

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

    def sequences(self) -> list[list[int]]:
        """The sequences without their padding."""
        lengths = self.mask.sum(1).tolist()
        return [row[:length] for row, length in zip(self.ids.tolist(), lengths, strict=True)]


def pad(
    sequences: Sequence[Sequence[int]], *, pad_id: int, segments: Sequence[Sequence[int]] | None = None
) -> TokenBatch:
    """Stacks sequences of token ids into a `TokenBatch` as long as the longest of them."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    width = max(int(lengths.max(initial=0)), 1)
    mask = np.arange(width) < lengths[:, None]

    def stack(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
        out = np.full(mask.shape, fill, dtype=np.int64)
        out[mask] = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        return torch.from_numpy(out)

    return TokenBatch(
        ids=stack(sequences, pad_id),
        mask=torch.from_numpy(mask),
        segments=None if segments is None else stack(segments, 0),
    )


def token_batches(lengths: Sequence[int], *, max_tokens: int, batch_size: int | None = None) -> list[list[int]]:
    """Cuts sequences of these lengths into batches of at most `max_tokens` tokens, padding included.

    Gives the sequences' places, from the shortest to the longest, so that a batch is of like length and one long
    sequence does not widen a thousand short ones. A sequence of more than `max_tokens` is a batch of its own.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = not batches or len(batches[-1]) == batch_size or (len(batches[-1]) + 1) * lengths[i] > max_tokens
        if full:
            batches.append([i])
        else:
            batches[-1].append(i)
    return batches


def length_groups(lengths: Sequence[int], *, pass_cost: int = PASS_COST) -> list[list[int]]:
    """Groups sequences of these lengths by index so that padded groups are cheapest to compute.

    A group costs its tokens, padding included, and `pass_cost`. Sorted by length the cheapest groups are neighbours, so
    that dynamic programming finds them: the best groups of the first k sequences are a last group and the best groups
    of the sequences before it. Groups come from the shortest sequences to the longest.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sizes, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)  # equals stay together
    before = np.concatenate([[0], counts.cumsum()])  # sequences that are shorter than each of the sizes
    least = np.zeros(len(before), dtype=np.int64)  # of the sequences of the first sizes
    starts = np.zeros(len(before), dtype=np.int64)  # of the last group among them
    for end in range(1, len(before)):
        costs = least[:end] + (before[end] - before[:end]) * sizes[end - 1]
        starts[end] = costs.argmin()
        least[end] = costs[starts[end]] + pass_cost
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        groups.append(order[before[starts[end]] : before[end]])
        end = int(starts[end])
    return groups[::-1]
