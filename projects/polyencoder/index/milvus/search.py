"""Search in a Milvus collection: its lists are shortlists, which `certificate` rescores and proves.

The codes of several contexts share a request. Each proposed vector is fetched once for all of these contexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.index.certificate import Shortlist, ShortlistResult, search_shortlists
from polyencoder.index.filters import Exactness
from polyencoder.index.milvus.collection import LONGEST_LIST, MilvusCollection
from polyencoder.index.rescoring import Rescoring
from polyencoder.scoring import ContextEncoding, TopK
from polyencoder.scoring.exact import scale_of
from polyencoder.scoring.rows import Chunk
from polyencoder.scoring.search import scan

_NAMED_AT_ONCE = 1 << 13  # candidates that lists may name, for the contexts that are searched together
_MOST_NAMED = 1 << 16  # for one context; if longer lists are needed, everything is fetched


@dataclass(eq=False)
class MilvusSearch(Rescoring):
    """A `certificate.ShortlistSearch` for the `k` best of the `available` candidates of a condition, k <= available.

    Each search numbers its candidates; `keys` maps the numbers to keys.
    """

    collection: MilvusCollection
    contexts: ContextEncoding
    _: KW_ONLY
    k: int
    available: int
    condition: str = ""
    attention: str = "basic"
    exact_lists: bool = False
    most_named: int = field(default=_NAMED_AT_ONCE, init=False)
    _numbers: dict[str, int] = field(default_factory=dict, init=False)
    """Of keys, in order of appearance."""
    _norm: float | None = field(default=None, init=False)

    @property
    def keys(self) -> list[str]:
        """The keys of the candidates, by number."""
        return list(self._numbers)

    def best(
        self, *, exactness: Exactness, list_length: int, floors: Sequence[float] | None = None
    ) -> list[ShortlistResult]:
        """The result of each context, with at least this `exactness`; of equal scores the lowest key comes first.

        Lists are doubled if they name fewer than k, or a required proof is missing. Everything is fetched and scored if
        the lists could name everything, if they cannot give the proof, and for "exact".
        """
        contexts, length = self.contexts, min(list_length, LONGEST_LIST)
        if self.k == 0:
            return [ShortlistResult(torch.empty(0), torch.empty(0, dtype=torch.int64), "exact")] * contexts.batch_size
        longest = max(length, min(LONGEST_LIST, _MOST_NAMED // contexts.n_codes))
        longest = min(longest, (self.available - 1) // contexts.n_codes)
        return search_shortlists(self, exactness=exactness, length=length, longest=longest, floors=floors)

    def scan(self, contexts: ContextEncoding) -> TopK:
        """Fetches and scores all candidates; a page, the keys and the best so far are in memory."""
        pages = _Pages(self.collection, self.condition, dim=contexts.dim, available=self.available)
        found = scan(contexts, pages, k=self.k, scale=scale_of(contexts, self.attention))
        keys = pages.keys(found.indices.flatten())
        return found._replace(indices=self._numbers_of(keys).view_as(found.indices))

    def propose(self, contexts: ContextEncoding, places: Sequence[int], length: int) -> Iterator[Shortlist]:
        """As in `certificate.ShortlistSearch`; rows are in the order of their keys.

        Outside a code's list no product exceeds the last one in it, and no score exceeds the largest product, but for
        rounding, which grows with the candidate's norm.
        """
        codes_of = contexts.to("cpu", torch.float32).codes()
        codes = torch.cat(codes_of)
        answers = iter(self.collection.nearest(codes.numpy(), length, self.condition) if len(codes) else [])
        # The maximum rounding difference of two fp32 products, Milvus's and ours, per unit of the candidate's norm:
        # dim x 2^-24 x |y| each, twice that for the score.
        rounding = iter((2 * codes.size(1) * torch.finfo(torch.float32).eps * codes.norm(dim=1)).tolist())
        lists = [list(islice(answers, len(own))) for own in codes_of]
        keys, vectors = self.collection.vectors(
            {key for own in lists for named in own for key in named}, dim=contexts.dim
        )
        place_of, numbers = {key: place for place, key in enumerate(keys)}, self._numbers_of(keys)
        norm = self._most_norm(vectors) if self.exact_lists and keys else math.inf
        for own in lists:
            units = islice(rounding, len(own))
            chosen = torch.tensor(sorted({place_of[key] for named in own for key in named if key in place_of})).long()
            ends = [min(named.values(), default=math.inf) + unit * norm for named, unit in zip(own, units, strict=True)]
            # A complete list leaves nothing outside, but does not need a special case.
            full = norm < math.inf and all(len(named) == length for named in own)
            yield Shortlist(numbers[chosen], vectors[chosen], max(ends, default=math.inf) if full else math.inf)

    def _most_norm(self, vectors: Tensor) -> float:
        """A norm that no vector of the collection exceeds; inf if one is a thousand times longer than these.

        Norms of one model are similar, so Milvus is first asked about twice the longest.
        """
        longest = float(vectors.norm(dim=1).max())
        if self._norm is None or self._norm < longest:
            norms = (factor * longest for factor in (2, 16, 1024))
            self._norm = next((norm for norm in norms if not self.collection.any(f"norm > {norm!r}")), math.inf)
        return self._norm

    def _numbers_of(self, keys: Sequence[str]) -> Tensor:
        """int64 [keys], a distinct number for each key in this search."""
        return torch.tensor([self._numbers.setdefault(key, len(self._numbers)) for key in keys], dtype=torch.int64)


class _Pages:
    """All candidates of a condition as a `scoring.rows.VectorStream` that keeps their keys."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, collection: MilvusCollection, condition: str, *, dim: int, available: int) -> None:
        self.dim = dim
        self._collection = collection
        self._condition = condition
        self._available = available
        self._keys: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        """Their number when the search began; another process may have changed it."""
        return self._available

    def chunks(self, size: int) -> Iterator[Chunk]:
        first = 0
        for keys, vectors in self._collection.pages(self._condition, dim=self.dim):
            self._keys.append(np.array(keys, dtype=np.bytes_))
            for start in range(0, len(vectors), size):
                yield Chunk(first + start, vectors[start : start + size])
            first += len(vectors)

    def keys(self, rows: Tensor) -> list[str]:
        """The keys of these rows, among those yielded by `chunks`."""
        if len(rows) == 0:
            return []
        return [key.decode() for key in np.concatenate(self._keys)[rows.cpu().numpy()]]
