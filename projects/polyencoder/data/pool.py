"""The candidate pool of a batch: in-batch, inline or fixed candidates, deduplicated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from polyencoder.errors import InputError


class FixedCandidates(Protocol):
    """Fixed candidates, one list for all examples: its texts, and the row of each."""

    texts: Sequence[str]
    place: dict[str, int]


@dataclass(frozen=True)
class CandidatePool:
    """Distinct candidate texts: each is encoded once, and never a negative of its own example."""

    texts: Sequence[str]
    labels: Tensor | None = None
    """[batch], the column of each example's label; None without labels."""
    own: Sequence[Sequence[str]] | None = None
    """Each example's candidates; None if all examples share the pool."""
    index: Tensor | None = None
    """[batch, n], the rows of `own` in the pool, -1 where an example has fewer than n; None with `own`."""
    mask: Tensor | None = None
    """[batch, n], False for texts that are no candidates of the example; None if all are."""
    given: Sequence[int] | None = None
    """The number of candidates of each example, with duplicates."""

    @property
    def has_negatives(self) -> bool:
        """Whether any example has more than one candidate."""
        return len(self.texts) > 1 if self.own is None else any(len(texts) > 1 for texts in self.own)

    def to(self, device: torch.device) -> CandidatePool:
        labels, index, mask = (None if t is None else t.to(device) for t in (self.labels, self.index, self.mask))
        return replace(self, labels=labels, index=index, mask=mask)

    def masked(self, scores: Tensor) -> Tensor:
        """Masks scores, in float32, with -inf where an example has no candidate."""
        scores = scores.float()
        return scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)

    def counts(self, batch_size: int) -> Sequence[int]:
        """The number of candidates of each example: the N of R{N}@k."""
        if self.given is not None:
            return self.given
        return [len(self.texts)] * batch_size if self.mask is None else self.mask.sum(1).tolist()

    def candidates(self, row: int) -> Sequence[str]:
        """The candidates of this example in the order of its scores, with those that `mask` excludes."""
        return self.texts if self.own is None else self.own[row]


def shared_pool(texts: Sequence[str], labels: Sequence[str] | None) -> CandidatePool:
    """A pool shared by all examples. Equal labels are one candidate, not negatives of each other."""
    pool = list(dict.fromkeys(texts))
    if labels is None:
        return CandidatePool(pool)
    place = {text: column for column, text in enumerate(pool)}
    return CandidatePool(pool, torch.tensor([place[label] for label in labels], dtype=torch.long))


def inline_pool(candidates: Sequence[Sequence[str]], labels: Sequence[str] | None) -> CandidatePool:
    """A pool of each example's own candidates, deduplicated."""
    own = [list(dict.fromkeys(texts)) for texts in candidates]
    pool: dict[str, int] = {}
    for texts in own:
        for text in texts:
            pool.setdefault(text, len(pool))
    width = max(len(texts) for texts in own)
    index = torch.tensor([[pool[text] for text in texts] + [-1] * (width - len(texts)) for texts in own])
    columns = (
        None if labels is None else torch.tensor([texts.index(label) for texts, label in zip(own, labels, strict=True)])
    )
    mask = index >= 0
    given = [len(texts) for texts in candidates]
    return CandidatePool(list(pool), columns, own, index, None if bool(mask.all()) else mask, given)


def fixed_pool(
    fixed: Sequence[str], place: dict[str, int], labels: Sequence[str] | None, *, add: bool
) -> CandidatePool:
    """A pool of fixed candidates and, with `add`, each example's label if it is not among them.

    `place` gives each fixed candidate's row.
    """
    if labels is None:
        return CandidatePool(fixed)
    extra = list(dict.fromkeys(label for label in labels if label not in place))
    if extra and not add:
        raise InputError(
            f"the label {extra[0]!r} is not among the {len(fixed)} fixed candidates; leave such examples out, or set "
            "add_label to add each label to its own example",
            argument="add_label",
        )
    if not extra:
        return CandidatePool(fixed, torch.tensor([place[label] for label in labels]))
    own = {label: len(fixed) + i for i, label in enumerate(extra)}
    columns = torch.tensor([own[label] if label in own else place[label] for label in labels])
    mask = torch.ones(len(labels), len(fixed) + len(extra), dtype=torch.bool)
    mask[:, len(fixed) :] = False
    mask[torch.arange(len(labels)), columns] = True
    return CandidatePool([*fixed, *extra], columns, mask=mask)


def without_twins(pool: CandidatePool, keys: Sequence[Hashable]) -> CandidatePool:
    """Merges texts with equal keys into the first of them.

    With a model's tokens as `keys`, texts between which it cannot tell ("Yes." and "yes.") are not each other's
    negatives.
    """
    first: dict[Hashable, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    if len(first) == len(keys):
        return pool
    texts = [pool.texts[place] for place in first.values()]
    new_place = {key: place for place, key in enumerate(first)}
    places = [new_place[key] for key in keys]
    device = None if pool.labels is None else pool.labels.device
    if pool.own is not None:
        stands_for = {text: texts[place] for text, place in zip(pool.texts, places, strict=True)}
        own = [[stands_for[text] for text in some] for some in pool.own]
        labels = None
        if pool.labels is not None:
            labels = [some[column] for some, column in zip(own, pool.labels.tolist(), strict=True)]
        merged = replace(inline_pool(own, labels), given=pool.given)
        return merged if device is None else merged.to(device)
    columns = torch.tensor(places, device=device)
    mask = None
    if pool.mask is not None:
        counts = torch.zeros(len(pool.mask), len(texts), dtype=torch.long, device=device)
        mask = counts.index_add(1, columns, pool.mask.long()) > 0
    return CandidatePool(texts, None if pool.labels is None else columns[pool.labels], mask=mask)


def batch_pool(
    source: str,
    *,
    labels: Sequence[str] | None,
    candidates: Sequence[Sequence[str]] | None,
    fixed: FixedCandidates | None = None,
    add_label: bool = False,
) -> CandidatePool:
    """The pool of a batch from one source: "batch", "batch-all-cands", "inline" or "fixed"."""
    if source == "batch" and labels is not None:
        return shared_pool(labels, labels)
    if source == "batch-all-cands" and candidates is not None:
        return shared_pool([text for texts in candidates for text in texts], labels)
    if source == "inline" and candidates is not None:
        return inline_pool(candidates, labels)
    if source == "fixed" and fixed is not None:
        return fixed_pool(fixed.texts, fixed.place, labels, add=add_label)
    raise InputError(f"candidates from {source!r} are not supported; use batch, inline, fixed or batch-all-cands")
