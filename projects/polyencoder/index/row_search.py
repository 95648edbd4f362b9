"""Search of an index in a database, which proposes candidates: they are scored and proven here (`certificate`).

Results are *exact* if all candidates that pass the filter were fetched and scored, as when lists could name all of
them; *certified* if the lists are exact and nothing outside them can be better; *approximate* otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from polyencoder.index.certificate import Shortlist, ShortlistSearch, search_shortlists
from polyencoder.index.filters import Filter
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.index.shortlists import Lists, iter_shortlists
from polyencoder.index.values import Kind
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.rows import Block
from polyencoder.search.scan import TopK, search

Field = Literal["id", "text", "metadata", "vector"]

_SHORTEST_LIST = 64
_NAMED_AT_ONCE = 1 << 13  # candidates that lists may name, for the contexts that are searched together
_MAX_NAMED = 1 << 16  # for one context; if longer lists are needed, everything is fetched


class Rows(Protocol):
    """The rows of an index in a database, as an engine reads them. A key is `rows.hash_id` of an id."""

    longest_list: int
    """The most rows that the engine proposes for a query."""

    def count(self, filter: Filter | None = None, *, limit: int | None = None) -> int:
        """The number of rows that pass the filter; counting may end at the limit."""

    def count_texts(self, filter: Filter | None = None) -> int:
        """The number of their different texts; of rows where an engine cannot count texts."""

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """See `Index.has_field`."""

    def fetch_rows(self, keys: Iterable[str], fields: Sequence[Field]) -> dict[str, dict[str, Any]]:
        """These fields of the existing rows with these keys; a vector is float32 [dim]."""

    def has_exact_lists(self, available: int) -> bool:
        """Whether `search_nearest` gives exactly the nearest of the `available` rows that pass a filter."""

    def search_nearest(
        self, queries: Array, length: int, *, filter: Filter | None, effort: int | None, exact: bool
    ) -> list[dict[str, float]]:
        """The nearest rows of each query, float32 [n, dim]: keys and inner products, largest first.

        `effort` is `SearchOptions.effort`; `exact` is `has_exact_lists`, with which a full list misses no nearer row.
        """

    def bound_norm(self) -> float:
        """A norm that no vector exceeds; inf if unknown."""

    def iter_pages(self, filter: Filter | None) -> Iterator[tuple[list[str], Array]]:
        """The keys and vectors, float32 [n, dim], of all rows that pass, in the order of their keys."""


def search_rows(rows: Rows, contexts: Contexts, options: SearchOptions, *, attention: str) -> list[list[Hit]]:
    """The best `top_k` rows of each context; of equal scores the lowest key comes first."""
    codes = contexts.n_codes
    k, length = options.k(1 << 62), options.list_length or max(4 * options.k(1 << 62), _SHORTEST_LIST)
    available = rows.count(options.filter, limit=max(k, codes * length, _MAX_NAMED) + 1)
    if (k := options.k(available)) == 0 or contexts.batch_size == 0:
        return [[] for _ in range(contexts.batch_size)]
    search = _RowSearch(rows, contexts, options, k=k, available=available, attention=attention)
    length = min(length, rows.longest_list)
    longest = max(length, min(rows.longest_list, _MAX_NAMED // codes))
    answers = search_shortlists(
        search,
        # under multi-head attention no inner product bounds a score
        exactness="exact" if contexts.keys is not None else options.exactness or "approximate",
        length=length,
        longest=min(longest, (available - 1) // codes),
    )
    keys = [[search.keys[row] for row in answer.rows.tolist()] for answer in answers]
    entries = rows.fetch_rows({key for ranking in keys for key in ranking}, ("id", "text", "metadata"))
    return [
        [
            Hit(entry["id"], entry["text"], score, entry["metadata"] or None, answer.exactness)
            for key, score in zip(ranking, answer.scores.tolist(), strict=True)
            if (entry := entries.get(key)) is not None  # perhaps just removed by another process
        ]
        for ranking, answer in zip(keys, answers, strict=True)
    ]


class _RowSearch(ShortlistSearch):
    """A `certificate.ShortlistSearch` for the k best rows. It numbers rows by their positions in `keys`."""

    max_named = _NAMED_AT_ONCE

    def __init__(
        self, rows: Rows, contexts: Contexts, options: SearchOptions, *, k: int, available: int, attention: str
    ) -> None:
        self.contexts = contexts
        self.k = k
        self.attention = attention
        self.exact_lists = rows.has_exact_lists(available)
        self.keys: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows, self._options, self._available = rows, options, available

    def propose(self, contexts: Contexts, positions: Sequence[int], length: int) -> Iterator[Shortlist]:
        """See `certificate.ShortlistSearch`; each vector is fetched once for all of the contexts."""
        codes = contexts.list_codes()
        max_norm = self._max_norm if self.exact_lists else np.inf
        finite = max_norm if max_norm < np.inf else 0.0

        def search_nearest(queries: Array) -> Lists:
            options, exact = self._options, self.exact_lists
            lists = self._rows.search_nearest(
                queries, length, filter=options.filter, effort=options.effort, exact=exact
            )
            bounded = exact and max_norm < np.inf
            outside = [min(near.values()) if bounded and len(near) == length else np.inf for near in lists]
            return Lists([self._number_keys(near) for near in lists], np.array(outside, dtype=np.float64))

        proposals = [
            *iter_shortlists(codes, search_nearest, grouped=self._options.exactness != "certified", max_norm=finite)
        ]
        keys = {self.keys[number] for numbers, _ in proposals for number in numbers}
        vectors = self._rows.fetch_rows(keys, ("vector",))
        for numbers, bound in proposals:
            ordered = sorted(key for number in numbers if (key := self.keys[number]) in vectors)
            stacked = np.array([vectors[key]["vector"] for key in ordered], dtype=np.float32).reshape(-1, contexts.dim)
            yield Shortlist(self._number_keys(ordered), stacked, bound)

    def scan(self, contexts: Contexts) -> TopK:
        """Fetches and scores all rows; a page, the keys and the best so far are in memory."""
        pages = _Pages(self._rows.iter_pages(self._options.filter), dim=contexts.dim, available=self._available)
        best = search(contexts, pages, k=self.k, attention=self.attention)
        numbers = self._number_keys(pages.get_keys(best.rows.flatten()))
        return best._replace(rows=numbers.reshape(best.rows.shape))

    @cached_property
    def _max_norm(self) -> float:
        return self._rows.bound_norm()

    def _number_keys(self, keys: Iterable[str]) -> Array:
        """int64 [keys], a distinct number for each key in this search."""
        numbers = []
        for key in keys:
            if (number := self._numbers.get(key)) is None:
                number = self._numbers[key] = len(self.keys)
                self.keys.append(key)
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)


class _Pages:
    """All rows that pass a filter as `search.rows.Rows` that keep their keys."""

    def __init__(self, pages: Iterator[tuple[list[str], Array]], *, dim: int, available: int) -> None:
        self.dim = dim
        self._pages = pages
        self._available = available
        self._keys: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        """The number of rows when the search began; another process may have changed it."""
        return self._available

    def iter_blocks(self, size: int) -> Iterator[Block]:
        first = 0
        for keys, vectors in self._pages:
            self._keys.append(np.array(keys, dtype=np.bytes_))
            for start in range(0, len(vectors), size):
                yield Block(first + start, vectors[start : start + size])
            first += len(vectors)

    def get_keys(self, rows: Array) -> list[str]:
        """The keys of these rows, among those yielded by `iter_blocks`."""
        if len(rows) == 0:
            return []
        return [key.decode() for key in np.concatenate(self._keys)[rows]]
