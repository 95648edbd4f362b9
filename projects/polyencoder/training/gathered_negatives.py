"""Gathered negatives: a step of several processes is that of one process with the examples of all of them.

Every process has a batch of its own. In each step they tell each other what their candidates are, encode each different
text once, in one of them, and score their own contexts with all of the vectors. The loss is the mean over all examples,
and the gradients of the weights are summed before the update. So neither batches of unequal size nor a batch of which
nothing can be used changes the update, or leaves others waiting.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from polyencoder.data.pool import CandidatePool
from polyencoder.training.distributed import Processes, gather_objects

__all__ = ["GatheredStep", "gathered_step"]


@dataclass(frozen=True)
class GatheredStep:
    """This process's part of a step of all processes.

    pool: what its examples choose from. examples: how many the processes have together. counts: how many texts of the
    pool each process encodes, in the pool's order; None where each has a pool of its own. rank: of this process.
    """

    pool: CandidatePool
    examples: int
    counts: Sequence[int] | None = None
    rank: int = 0

    @property
    def own_texts(self) -> Sequence[str]:
        """The texts that this process encodes."""
        if self.counts is None:
            return self.pool.texts
        start = sum(self.counts[: self.rank])
        return self.pool.texts[start : start + self.counts[self.rank]]


def gathered_step(
    pool: CandidatePool, examples: int, *, processes: Processes, gather: bool, keys: Sequence[Hashable] | None = None
) -> GatheredStep:
    """The step of all processes, in which this one has `pool` and `examples` examples.

    With `gather` all processes' pools become one, in which each text is once: in the place, and so with the process,
    where it is first. Texts with equal `keys`, by default themselves, are one. Without processes to join nothing
    changes.
    """
    if processes.count == 1:
        return GatheredStep(pool, examples)
    keys = pool.texts if keys is None else keys
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
    places = {key: place for place, key in enumerate(texts)}
    widened = _widened(pool, list(texts.values()), [places[key] for key in keys])
    return GatheredStep(widened, total, counts, processes.rank)


def _widened(pool: CandidatePool, texts: list[str], places: list[int]) -> CandidatePool:
    """A pool with more texts, its own at these places. What an example may not choose of its own stays excluded."""
    labels, mask = pool.labels, pool.mask
    if labels is None:
        return CandidatePool(texts)
    columns = torch.tensor(places, dtype=torch.long, device=labels.device)
    if mask is not None:
        mask = mask.new_ones(len(mask), len(texts)).index_copy(1, columns, mask)
    return CandidatePool(texts, columns[labels], mask=mask)
