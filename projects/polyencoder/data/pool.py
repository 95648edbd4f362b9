"""The candidate pool of a batch: in-batch, inline or fixed candidates, deduplicated."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from polyencoder.errors import InputError

Relevance: TypeAlias = Sequence[Mapping[str, float] | None]
"""The right texts of each example with their labels, numbers above 0; None for one right text with the label 1."""


@dataclass(frozen=True)
class CandidatePool:
    """Distinct candidate texts: each is encoded once, and never a negative of its own example."""

    texts: Sequence[str]
    labels: Tensor | None = None
    """[batch], the column of each example's label, the best of several right texts; None without labels."""
    lists: Sequence[Sequence[str]] | None = None
    """Each example's candidates; None if all examples share the pool."""
    index: Tensor | None = None
    """[batch, n], the rows of `lists` in the pool, -1 where an example has fewer than n; None with `lists`."""
    mask: Tensor | None = None
    """[batch, n], False for texts that are no candidates of the example; None if all are."""
    sizes: Sequence[int] | None = None
    """The number of candidates of each example, with duplicates."""
    relevance: Tensor | None = None
    """[batch, n], the label of each candidate as a number, 0 if it is wrong; None if all examples have one right
    candidate, with the label 1."""

    @property
    def numbers(self) -> Tensor:
        """The labels as numbers [batch, n]: `relevance`, or 1 for each example's right candidate."""
        if self.relevance is not None:
            return self.relevance
        assert self.labels is not None
        width = len(self.texts) if self.index is None else self.index.size(1)
        zeros = torch.zeros(len(self.labels), width, device=self.labels.device)
        return zeros.scatter(1, self.labels.unsqueeze(1), 1.0)

    @property
    def has_negatives(self) -> bool:
        """Whether any example has more than one candidate."""
        return len(self.texts) > 1 if self.lists is None else any(len(texts) > 1 for texts in self.lists)

    def to(self, device: torch.device) -> CandidatePool:
        labels, index, mask, relevance = (
            None if t is None else t.to(device) for t in (self.labels, self.index, self.mask, self.relevance)
        )
        return replace(self, labels=labels, index=index, mask=mask, relevance=relevance)

    def mask_scores(self, scores: Tensor) -> Tensor:
        """Masks scores, in float32, with -inf where an example has no candidate."""
        scores = scores.float()
        return scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)

    def count_candidates(self, batch_size: int) -> Sequence[int]:
        """The number of candidates of each example: the N of R{N}@k."""
        if self.sizes is not None:
            return self.sizes
        return [len(self.texts)] * batch_size if self.mask is None else self.mask.sum(1).tolist()

    def list_candidates(self, row: int) -> Sequence[str]:
        """The candidates of this example in the order of its scores, with those that `mask` excludes."""
        return self.texts if self.lists is None else self.lists[row]

    def list_right(self) -> list[list[str]]:
        """The right candidates of each example."""
        assert self.labels is not None
        if self.relevance is None:
            return [[self.list_candidates(row)[column]] for row, column in enumerate(self.labels.tolist())]
        texts: list[list[str]] = [[] for _ in range(len(self.labels))]
        for row, column in (self.relevance > 0).nonzero().tolist():
            texts[row].append(self.list_candidates(row)[column])
        return texts

    def add_negatives(self, texts: Sequence[Sequence[str]]) -> CandidatePool:
        """The pool with further texts for each example, which are wrong unless they are right already.

        In a shared pool they are candidates of all examples, else of their example alone.
        """
        if self.lists is not None and self.labels is not None:
            labels = [candidates[column] for candidates, column in zip(self.lists, self.labels.tolist(), strict=True)]
            numbers = None if self.relevance is None else list(map(_get_best, self.lists, self.relevance.tolist()))
            lists = [[*candidates, *added] for candidates, added in zip(self.lists, texts, strict=True)]
            return build_inline_pool(lists, labels, numbers).to(self.labels.device)
        assert self.mask is None
        whole = list(dict.fromkeys([*self.texts, *chain.from_iterable(texts)]))
        relevance = self.relevance
        if relevance is not None:
            relevance = torch.nn.functional.pad(relevance, (0, len(whole) - len(self.texts)))
        return CandidatePool(whole, self.labels, relevance=relevance)


def build_shared_pool(
    texts: Sequence[str], labels: Sequence[str] | None, relevance: Relevance | None = None
) -> CandidatePool:
    """A pool shared by all examples. Equal labels are one candidate, not negatives of each other."""
    pool = list(dict.fromkeys(texts))
    if labels is None:
        return CandidatePool(pool)
    column_of = {text: column for column, text in enumerate(pool)}
    columns = torch.tensor([column_of[label] for label in labels], dtype=torch.long)
    numbers = None if relevance is None else _grade([column_of] * len(labels), labels, relevance, width=len(pool))
    return CandidatePool(pool, columns, relevance=numbers)


def _grade(columns: Sequence[Mapping[str, int]], labels: Sequence[str], relevance: Relevance, *, width: int) -> Tensor:
    """The labels [batch, width] of each example's right texts, in the texts' columns."""
    table = torch.zeros(len(labels), width)
    for row, (column_of, label, numbers) in enumerate(zip(columns, labels, relevance, strict=True)):
        for text, number in ({label: 1.0} if numbers is None else numbers).items():
            table[row, column_of[text]] = number
    return table


def build_inline_pool(
    candidates: Sequence[Sequence[str]], labels: Sequence[str] | None, relevance: Relevance | None = None
) -> CandidatePool:
    """A pool of each example's own candidates, deduplicated."""
    lists = [list(dict.fromkeys(texts)) for texts in candidates]
    pool = list(dict.fromkeys(chain.from_iterable(lists)))
    row_of = {text: row for row, text in enumerate(pool)}
    width = max(map(len, lists))
    index = torch.tensor([[row_of[text] for text in texts] + [-1] * (width - len(texts)) for texts in lists])
    columns, numbers = None, None
    if labels is not None:
        columns = torch.tensor([texts.index(label) for texts, label in zip(lists, labels, strict=True)])
        if relevance is not None:
            text_columns = [{text: column for column, text in enumerate(texts)} for texts in lists]
            numbers = _grade(text_columns, labels, relevance, width=width)
    mask = index >= 0
    sizes = [len(texts) for texts in candidates]
    return CandidatePool(pool, columns, lists, index, None if bool(mask.all()) else mask, sizes, numbers)


def build_fixed_pool(
    fixed: Sequence[str], column_of: dict[str, int], labels: Sequence[str] | None, *, add: bool
) -> CandidatePool:
    """A pool of fixed candidates and, with `add`, each example's label if it is not among them.

    `column_of` gives each fixed candidate's column.
    """
    if labels is None:
        return CandidatePool(fixed)
    extra = list(dict.fromkeys(label for label in labels if label not in column_of))
    if extra and not add:
        raise InputError(
            f"the label {extra[0]!r} is not among the {len(fixed)} fixed candidates; leave such examples out, or set "
            "add_label to add each label to its own example",
            argument="add_label",
        )
    if not extra:
        return CandidatePool(fixed, torch.tensor([column_of[label] for label in labels]))
    extra_columns = {label: len(fixed) + i for i, label in enumerate(extra)}
    columns = torch.tensor([extra_columns[label] if label in extra_columns else column_of[label] for label in labels])
    mask = torch.ones(len(labels), len(fixed) + len(extra), dtype=torch.bool)
    mask[:, len(fixed) :] = False
    mask[torch.arange(len(labels)), columns] = True
    return CandidatePool([*fixed, *extra], columns, mask=mask)


def merge_equal(pool: CandidatePool, keys: Sequence[Hashable]) -> CandidatePool:
    """Merges texts with equal keys into the first of them.

    With a model's tokens as `keys`, texts between which it cannot tell ("Yes." and "yes.") are not each other's
    negatives.
    """
    first: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    if len(first) == len(keys):
        return pool
    texts = [pool.texts[row] for row in first.values()]
    new_rows = {key: row for row, key in enumerate(first)}
    rows = [new_rows[key] for key in keys]
    device = None if pool.labels is None else pool.labels.device
    if pool.lists is not None:
        stands_for = {text: texts[row] for text, row in zip(pool.texts, rows, strict=True)}
        lists = [[stands_for[text] for text in candidates] for candidates in pool.lists]
        labels, relevance = None, None
        if pool.labels is not None:
            labels = [candidates[column] for candidates, column in zip(lists, pool.labels.tolist(), strict=True)]
        if pool.relevance is not None:
            relevance = list(map(_get_best, lists, pool.relevance.tolist()))
        merged = replace(build_inline_pool(lists, labels, relevance), sizes=pool.sizes)
        return merged if device is None else merged.to(device)
    columns = torch.tensor(rows, device=device)
    mask, numbers = None, None
    if pool.relevance is not None:
        zeros = pool.relevance.new_zeros(len(pool.relevance), len(texts))
        numbers = zeros.scatter_reduce(1, columns.expand_as(pool.relevance), pool.relevance, "amax")
    if pool.mask is not None:
        counts = torch.zeros(len(pool.mask), len(texts), dtype=torch.long, device=device)
        mask = counts.index_add(1, columns, pool.mask.long()) > 0
    return CandidatePool(texts, None if pool.labels is None else columns[pool.labels], mask=mask, relevance=numbers)


def _get_best(texts: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    """The highest label of each text that occurs once or more."""
    best: dict[str, float] = {}
    for text, number in zip(texts, numbers, strict=False):  # numbers has padding
        best[text] = max(number, best.get(text, 0.0))
    return best


def build_batch_pool(
    source: str,
    *,
    labels: Sequence[str] | None,
    candidates: Sequence[Sequence[str]] | None,
    relevance: Relevance | None = None,
) -> CandidatePool:
    """The pool of a batch from one source: "batch", "batch-all-cands" or "inline".

    `relevance` are the examples' right texts, None for the labels alone.
    """
    if relevance is not None and all(numbers is None for numbers in relevance):
        relevance = None
    if source == "batch" and labels is not None:
        right = zip(labels, relevance or [None] * len(labels), strict=True)
        texts = [text for label, numbers in right for text in ([label] if numbers is None else numbers)]
        return build_shared_pool(texts, labels, relevance)
    if source == "batch-all-cands" and candidates is not None:
        return build_shared_pool(list(chain.from_iterable(candidates)), labels, relevance)
    if source == "inline" and candidates is not None:
        return build_inline_pool(candidates, labels, relevance)
    raise InputError(f"candidates from {source!r} are not supported; use batch, inline or batch-all-cands")
