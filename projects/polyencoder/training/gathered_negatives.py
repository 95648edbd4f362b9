"""Gathered negatives: a step of several processes equals one process's step with all examples.

Every process has its own batch. In each step they exchange their candidates, encode each distinct text once, in one of
them, and score their own contexts with all vectors. The loss is the mean over all examples, and gradients are summed
before the update. So unequal or unusable batches neither change the update nor block other processes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from polyencoder.data.pool import CandidatePool
from polyencoder.training.distributed import Processes, gather_objects


@dataclass(frozen=True)
class GatheredStep:
    """This process's part of a step of all processes.

    pool: the candidates of its examples. examples: the number of examples of all processes. counts: how many texts of
    the pool each process encodes, in the pool's order; None if each has its own pool. rank: of this process.
    """

    pool: CandidatePool
    examples: int
    counts: Sequence[int] | None = None
    rank: int = 0

    @property
    def local_texts(self) -> Sequence[str]:
        """The texts that this process encodes."""
        if self.counts is None:
            return self.pool.texts
        start = sum(self.counts[: self.rank])
        return self.pool.texts[start : start + self.counts[self.rank]]


def gather_step(
    pool: CandidatePool, examples: int, *, processes: Processes, gather: bool, keys: Sequence[Hashable]
) -> GatheredStep:
    """Combines the processes' pools into a step; this process has `pool` and `examples` examples.

    With `gather` all pools are merged and deduplicated by `keys`; a text belongs to the first process that has it. With
    a single process nothing changes.
    """
    if processes.count == 1:
        return GatheredStep(pool, examples)
    everyone = gather_objects((examples, list(zip(keys, pool.texts, strict=True)) if gather else []))
    total = sum(count for count, _ in everyone)
    if not gather:
        return GatheredStep(pool, total)
    texts: dict[Hashable, str] = {}
    counts = []
    for _, pairs in everyone:
        before = len(texts)
        for key, text in pairs:
            texts.setdefault(key, text)
        counts.append(len(texts) - before)
    positions = {key: position for position, key in enumerate(texts)}
    widened = _widen(pool, list(texts.values()), [positions[key] for key in keys])
    return GatheredStep(widened, total, counts, processes.rank)


def _widen(pool: CandidatePool, texts: list[str], positions: list[int]) -> CandidatePool:
    """Extends a pool to `texts`, where its own have these positions; exclusions are unchanged."""
    labels, mask, relevance = pool.labels, pool.mask, pool.relevance
    if labels is None:
        return CandidatePool(texts)
    columns = torch.tensor(positions, dtype=torch.long, device=labels.device)
    if relevance is not None:
        relevance = relevance.new_zeros(len(relevance), len(texts)).index_copy(1, columns, relevance)
    if mask is not None:
        mask = mask.new_ones(len(mask), len(texts)).index_copy(1, columns, mask)
    return CandidatePool(texts, columns[labels], mask=mask, relevance=relevance)
