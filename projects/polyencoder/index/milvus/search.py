"""Search in a Milvus collection: its lists propose, `certificate.search_by_lists` scores and proves.

All codes of some contexts ask in one request. What they name is fetched, each vector once for all of these contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.index.certificate import Proposal, search_by_lists
from polyencoder.index.milvus.collection import LONGEST_LIST, MilvusCollection
from polyencoder.index.options import Found
from polyencoder.scoring import ContextEncoding, TopK
from polyencoder.scoring.exact import scale_of
from polyencoder.scoring.search import scan

__all__ = ["Best", "MilvusSearch"]

_NAMED_AT_ONCE = 1 << 13  # candidates that lists may name, for the contexts that are searched together
_MOST_NAMED = 1 << 16  # for one context; where longer lists would be needed, everything is fetched


class Best(NamedTuple):
    """The result of one context, best first; of equal scores, the lowest key comes first."""

    keys: list[str]
    scores: list[float]
    found: Found


class MilvusSearch:
    """One search: the `k` best of the `available` candidates of a condition, k <= available, by which score."""

    def __init__(
        self,
        collection: MilvusCollection,
        contexts: ContextEncoding,
        *,
        k: int,
        available: int,
        condition: str = "",
        attention: str = "basic",
        exact_lists: bool = False,
    ) -> None:
        self.collection = collection
        self.contexts = contexts
        self.k = k
        self.available = available
        self.condition = condition
        self.attention = attention
        self.exact_lists = exact_lists
        self._numbers: dict[str, int] = {}  # of keys, in the order in which they were met
        self._no_norm_above = torch.inf

    def best(self, *, exactness: Found = "approximate", list_length: int) -> list[Best]:
        """The result of each context, at least as certain as `exactness`.

        Lists are doubled where they name fewer than k, or nothing is proven and it must be. Everything is fetched and
        scored where they could name as much, where they cannot prove what they must, and for "exact".
        """
        contexts, length = self.contexts, min(list_length, LONGEST_LIST)
        if self.k == 0:
            return [Best([], [], "exact")] * contexts.batch_size
        longest = max(length, min(LONGEST_LIST, _MOST_NAMED // contexts.n_codes))
        answers = search_by_lists(
            contexts,
            k=self.k,
            exactness=exactness,
            exact_lists=self.exact_lists,
            length=length,
            longest=min(longest, (self.available - 1) // contexts.n_codes),
            propose=self._propose,
            scan=self._scan,
            attention=self.attention,
        )
        keys = list(self._numbers)
        return [Best([keys[row] for row in rows.tolist()], scores.tolist(), found) for scores, rows, found in answers]

    def _scan(self, contexts: ContextEncoding) -> TopK:
        """By fetching and scoring all candidates. In memory are a page, the keys, and the best so far."""
        pages = _Pages(self.collection, self.condition, dim=contexts.dim, available=self.available)
        found = scan(contexts, pages, k=self.k, scale=scale_of(contexts, self.attention))
        keys = pages.keys(found.indices.flatten())
        return found._replace(indices=self._numbers_of(keys).view_as(found.indices))

    def _propose(self, which: Sequence[int], length: int) -> Iterator[Proposal]:
        """As `certificate.Propose`, for as many contexts at a time as name no more than `_NAMED_AT_ONCE`."""
        at_once = max(1, _NAMED_AT_ONCE // (self.contexts.n_codes * length))
        for i in range(0, len(which), at_once):
            some = torch.tensor(which[i : i + at_once], device=self.contexts.vectors.device)
            yield from self._proposals(self.contexts.select(some), length)

    def _proposals(self, contexts: ContextEncoding, length: int) -> Iterator[Proposal]:
        real = contexts.mask
        if real is None:
            real = torch.ones(contexts.vectors.shape[:2], dtype=torch.bool, device=contexts.vectors.device)
        codes = contexts.vectors[real].float().cpu()  # [all codes of all contexts, dim]
        answers = iter(self.collection.nearest(codes.numpy(), length, self.condition) if len(codes) else [])
        # How far two fp32 products, Milvus's and ours, can differ by rounding, for each unit of the candidate's norm:
        # dim x 2^-24 x |y| each, twice that for the score.
        rounding = iter((2 * codes.size(1) * torch.finfo(torch.float32).eps * codes.norm(dim=1)).tolist())
        lists = [list(islice(answers, n)) for n in real.sum(dim=1).tolist()]
        keys, vectors = self.collection.vectors(
            {key for own in lists for named in own for key in named}, dim=contexts.dim
        )
        place_of = {key: place for place, key in enumerate(keys)}
        numbers = self._numbers_of(keys)
        longest = float(vectors.norm(dim=1).max()) if keys else 0.0
        for own in lists:
            units = list(islice(rounding, len(own)))
            places = torch.tensor(sorted({place_of[key] for named in own for key in named if key in place_of})).long()
            # A list of all that there are is one of everything: it is not worth a case of its own.
            full = self.exact_lists and all(len(named) == length for named in own)
            proves = partial(self._proves, own, units, longest) if full else _nothing
            yield Proposal(numbers[places], vectors[places], proves)

    def _proves(
        self, lists: Sequence[Mapping[str, float]], rounding: Sequence[float], longest: float, score: float
    ) -> bool:
        """Whether no candidate outside a context's lists can have a score above this one.

        Outside a code's list no product is above the last in it, and no score above the largest product, but for
        rounding: so the proof holds for candidates up to some norm.
        """
        ends = [(min(named.values()), unit) for named, unit in zip(lists, rounding, strict=True)]
        norm = min((score - last) / max(unit, 1e-30) for last, unit in ends)
        return norm >= longest and self._none_above(norm, longest=longest)

    def _none_above(self, norm: float, *, longest: float) -> bool:
        """Whether no vector of the collection is longer than `norm`; the `longest` that was met is not.

        Those of one model are about as long as each other: what Milvus says of the double does for all contexts.
        """
        for asked in sorted({min(norm, 2 * longest), norm}):
            if asked >= self._no_norm_above:
                return True
            if not self.collection.any(f"norm > {min(asked, 1e30):f}"):
                self._no_norm_above = asked
                return True
        return False

    def _numbers_of(self, keys: Sequence[str]) -> Tensor:
        """int64 [keys], for each key a number of its own in this search."""
        return torch.tensor([self._numbers.setdefault(key, len(self._numbers)) for key in keys], dtype=torch.int64)


class _Pages:
    """All candidates of a condition as `scoring.rows.Chunks`, whose keys are kept."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, collection: MilvusCollection, condition: str, *, dim: int, available: int) -> None:
        self.dim = dim
        self._collection = collection
        self._condition = condition
        self._available = available
        self._keys: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        """How many there were; another process may just have changed that."""
        return self._available

    def chunks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        first = 0
        for keys, vectors in self._collection.pages(self._condition, dim=self.dim):
            self._keys.append(np.array(keys, dtype=np.bytes_))
            for start in range(0, len(vectors), size):
                yield first + start, vectors[start : start + size]
            first += len(vectors)

    def scales(self, start: int, stop: int) -> Tensor | None:
        return None

    def keys(self, rows: Tensor) -> list[str]:
        """The keys of these rows, of those that `chunks` has given."""
        if len(rows) == 0:
            return []
        return [key.decode() for key in np.concatenate(self._keys)[rows.cpu().numpy()]]


def _nothing(score: float) -> bool:
    """What lists that are not exact, or not full, prove."""
    return False
