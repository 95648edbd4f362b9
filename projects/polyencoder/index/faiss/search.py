"""Search with a FAISS index: its `lists` are shortlists, which `certificate` rescores and proves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from polyencoder.guesses import changed
from polyencoder.index.certificate import Rescoring, Shortlist, ShortlistOptions
from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.faiss.lists import FaissLists, FaissRequest
from polyencoder.index.filters import Exactness
from polyencoder.index.options import SearchOptions
from polyencoder.index.vectors import Vectors
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import TopK, available_rows, search
from polyencoder.search.scores import scale_of


class Results(NamedTuple):
    """The best rows of each context, best first, with the exactness of each result."""

    scores: Array
    """[batch, k]"""
    rows: Array
    """int64 [batch, k]."""
    found: list[Exactness]
    """[batch]"""


def scan_vectors(
    contexts: Contexts,
    vectors: Vectors,
    options: SearchOptions,
    *,
    allowed: Array | None = None,
    attention: str = "basic",
) -> Results:
    """The best rows by scoring all, or all that are `allowed`, bool [rows]; at most `top_k`."""
    k = options.k(available_rows(vectors, allowed))
    if k == 0:
        nothing = np.empty((len(contexts), 0))
        return Results(nothing, nothing.astype(np.int64), ["exact"] * len(contexts))
    return Results(*search(contexts, vectors, k=k, allowed=allowed, attention=attention), ["exact"] * len(contexts))


class FaissSearch:
    """An index's vectors with the FAISS index from `build_faiss`.

    Rows added after the build are scanned and merged, so they are found like all others.

    Args:
        meta: the index's description.
        vectors: the index's; the first ones are those of the FAISS index.
        index: FAISS's, if it is open already; else errors are those of `FaissLists`.
    """

    def __init__(self, meta: FaissFile, vectors: Vectors, *, index: Any = None) -> None:
        self.meta = meta
        self.vectors = vectors
        self.lists = FaissLists(meta, vectors.folder, dim=vectors.dim, rows=len(vectors), index=index)

    def search(
        self,
        contexts: Contexts,
        options: SearchOptions | None = None,
        *,
        allowed: Array | None = None,
        attention: str = "basic",
        **changes: Any,
    ) -> Results:
        """The best rows for each context; of equal scores in a list, the lowest row comes first.

        All scores are exact, as computed by `polyencoder.search`; an approximate search may miss a row.

        Args:
            options: without `filter`.
            allowed: bool [rows], True for the rows that may be found. If they are few they are scanned; so is
                everything for a `top_k` above 1,024.
            attention: "basic", "sqrt" or "multihead", as in `search.scores.score`. With "multihead", lists do
                not bound scores: everything is scanned. Certificates hold for the others. But the weights of
                "sqrt" are flatter and its scores lie further below the largest logit, so it needs longer lists for
                a certificate, and for the same recall.
            changes: fields of the options.

        Raises:
            ConfigError: an option is unknown.
            InputError: a number is too small, or contexts, `allowed` or attention do not fit.
        """
        options = changed(options or SearchOptions(), changes)
        scale_of(contexts, attention)  # raises for one that does not fit
        available = available_rows(self.vectors, allowed)
        few = None if allowed is None else available
        nothing = contexts.batch_size == 0 or contexts.keys is not None  # that lists tell of multi-head attention
        if nothing or self.lists.scans(options, k=options.k(available), allowed=few):
            return scan_vectors(contexts, self.vectors, options, allowed=allowed, attention=attention)
        return self.search_lists(contexts, options, allowed=allowed, attention=attention)

    def search_lists(
        self,
        contexts: Contexts,
        options: SearchOptions,
        *,
        allowed: Array | None = None,
        attention: str = "basic",
    ) -> Results:
        """`search` of at least one context, by FAISS even if few rows are allowed (at least one)."""
        k = options.k(available_rows(self.vectors, allowed))
        engine = _Shortlists(self, contexts, options, k=k, allowed=allowed, attention=attention)
        answers = self.lists.search(engine, options)
        scores, rows, found = zip(*answers, strict=True)
        return Results(np.stack(scores), np.stack(rows), list(found))


class _Shortlists(Rescoring):
    """FAISS as a `certificate.ShortlistSearch`: codes propose, or groups of codes without certificates."""

    most_named = 1 << 22

    def __init__(
        self,
        searcher: FaissSearch,
        contexts: Contexts,
        options: ShortlistOptions,
        *,
        k: int,
        allowed: Array | None,
        attention: str,
    ) -> None:
        self.contexts = contexts
        self.k = k
        self.attention = attention
        self.exact_lists = searcher.meta.has_exact_lists
        self._vectors, self._covered = searcher.vectors, searcher.meta.rows
        self._allowed = allowed
        self._request = FaissRequest(searcher.lists, options, allowed=allowed)

    def scan(self, contexts: Contexts) -> TopK:
        return search(contexts, self._vectors, k=self.k, allowed=self._allowed, attention=self.attention)

    def propose(self, contexts: Contexts, places: Sequence[int], length: int) -> Iterator[Shortlist]:
        """As in `certificate.ShortlistSearch`; each list also has the k best of the rows that FAISS lacks."""
        for place, (rows, bound) in zip(places, self._request.lists(contexts.codes(), length), strict=True):
            found = np.concatenate([rows, self._newer[place]]) if len(rows) else rows
            yield Shortlist(found, self._vectors.take(found), bound)

    @cached_property
    def _newer(self) -> Array:
        """The k best of the rows that FAISS lacks, or all if fewer: int64 [batch, n], ascending."""
        nothing = np.empty((len(self.contexts), 0), dtype=np.int64)
        if self._covered == len(self._vectors):  # without a look at every row
            return nothing
        newer = np.arange(len(self._vectors)) >= self._covered
        if self._allowed is not None:
            newer &= self._allowed
        if (k := min(self.k, int(newer.sum()))) == 0:
            return nothing
        found = search(self.contexts, self._vectors, k=k, allowed=newer, attention=self.attention)
        return np.sort(found.rows, axis=1)
