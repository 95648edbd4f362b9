"""Batches of token sequences: padded arrays, and which sequences go together, by token budget or similar length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PASS_COST = 256  # fixed cost of one pass through a model, in tokens


def pad_arrays(sequences: Sequence[Sequence[int]], *, pad_id: int, width: int = 1) -> tuple[Array, Array]:
    """Stacks sequences as int64 [n, length], `width` or the longest of them, with their mask, False at padding."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    mask = np.arange(max(int(lengths.max(initial=0)), width, 1)) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(lengths.sum()))
    return ids, mask


def cut_into_batches(lengths: Sequence[int], *, max_tokens: int, batch_size: int | None = None) -> list[list[int]]:
    """Cuts sequences of these lengths into batches of at most `max_tokens` tokens, padding included.

    Returns the sequences' positions, from the shortest to the longest, so that a batch has similar lengths and one long
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


def group_lengths(lengths: Sequence[int], *, pass_cost: int = PASS_COST) -> list[list[int]]:
    """Groups sequences of these lengths by index so that padded groups are cheapest to compute.

    A group costs its tokens, padding included, and `pass_cost`. Sorted by length the cheapest groups are neighbours, so
    that dynamic programming finds them: the best groups of the first k sequences are a last group and the best groups
    of the sequences before it. Groups come from the shortest sequences to the longest.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sizes, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)  # equals stay together
    before = np.concatenate([[0], counts.cumsum()])  # sequences that are shorter than each of the sizes
    lowest = np.zeros(len(before), dtype=np.int64)  # of the sequences of the first sizes
    starts = np.zeros(len(before), dtype=np.int64)  # of the last group among them
    for end in range(1, len(before)):
        costs = lowest[:end] + (before[end] - before[:end]) * sizes[end - 1]
        starts[end] = costs.argmin()
        lowest[end] = costs[starts[end]] + pass_cost
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        groups.append(order[before[starts[end]] : before[end]])
        end = int(starts[end])
    return groups[::-1]
