"""Length bucketing: which sequences of a batch go through a model together, so that little of it is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS = 256  # tokens that one more pass through a model costs as much as: what it takes besides its matrix products


def length_groups(lengths: Sequence[int], *, pass_cost: int = PASS) -> list[list[int]]:
    """The places of sequences of these lengths, in groups that cost least to compute, each padded to its longest.

    A group costs its tokens, padding included, and `pass_cost`. Sorted by length the cheapest groups are neighbours, so
    that they are found exactly: the best first k sequences end with some group, before which the best of fewer stand.
    Groups come from the shortest sequences to the longest.
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
