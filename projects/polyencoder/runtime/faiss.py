"""Searches of a FAISS index in numpy: its lists are shortlists, which `polyencoder.index.certificate` proves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from polyencoder.index.certificate import Shortlist, ShortlistOptions
from polyencoder.index.faiss.lists import FaissLists, FaissRequest
from polyencoder.runtime.scoring import Contexts, Score
from polyencoder.runtime.vectors import TopK, Vectors, checked_scores
from polyencoder.text.batches import Array

__all__ = ["FaissShortlists"]


class FaissShortlists:
    """FAISS as a `certificate.ShortlistSearch`, like that of `polyencoder.index.faiss.search` with torch.

    Args:
        lists: the FAISS index of the first rows of `vectors`.
        score: of all that is found.
        k: at least 1, and at most the number of allowed rows.
        allowed: bool [rows]; None for all.
    """

    most_named = 1 << 22

    def __init__(
        self,
        lists: FaissLists,
        vectors: Vectors,
        contexts: Contexts,
        score: Score,
        options: ShortlistOptions,
        *,
        k: int,
        allowed: Array | None,
    ) -> None:
        self.contexts = contexts
        self.k = k
        self.exact_lists = lists.meta.has_exact_lists
        self._vectors, self._covered = vectors, lists.meta.rows
        self._score, self._allowed = score, allowed
        self._request = FaissRequest(lists, options, allowed=allowed)

    def propose(self, contexts: Contexts, places: Sequence[int], length: int) -> Iterator[Shortlist]:
        for place, (rows, bound) in zip(places, self._request.lists(contexts.codes(), length), strict=True):
            found = np.concatenate([rows, self._newer[place]]) if len(rows) else rows
            yield Shortlist(found, self._vectors.take(found), bound)

    def rescored(self, context: Contexts, shortlist: Shortlist) -> tuple[Array, Array]:
        scores = checked_scores(self._score(context, shortlist.vectors))
        best = TopK(scores, shortlist.rows[None]).first(self.k)
        return best.scores[0], best.rows[0]

    def scan(self, contexts: Contexts) -> TopK:
        return self._best(contexts, k=self.k, allowed=self._allowed)

    @cached_property
    def _newer(self) -> Array:
        """The k best of the rows that FAISS lacks, or all if fewer: int64 [contexts, n], ascending."""
        if self._covered == len(self._vectors):  # without a look at every row
            return np.empty((len(self.contexts), 0), dtype=np.int64)
        newer = np.arange(len(self._vectors)) >= self._covered
        if self._allowed is not None:
            newer &= self._allowed
        return np.sort(self._best(self.contexts, k=self.k, allowed=newer).rows, axis=1)

    def _best(self, contexts: Contexts, *, k: int, allowed: Array | None) -> TopK:
        return self._vectors.best(
            lambda vectors: self._score(contexts, vectors), contexts=contexts.batch_size, k=k, allowed=allowed
        )
