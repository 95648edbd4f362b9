"""Search in a Milvus collection: its lists propose, `polyencoder.scoring` decides.

All codes of some contexts ask in one request. What a context's codes name is fetched, each vector once for all
contexts, and scored exactly. As in `approximate`, a result is proven right where a list truly holds a code's nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.index.base import Found
from polyencoder.index.milvus.collection import LONGEST_LIST, MilvusCollection
from polyencoder.scoring import ContextEncoding, score, search
from polyencoder.scoring.search import RunningTopK

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
        *,
        k: int,
        available: int,
        condition: str = "",
        attention: str = "basic",
        exact_lists: bool = False,
    ) -> None:
        self.collection = collection
        self.k = k
        self.available = available
        self.condition = condition
        self.attention = attention
        self.exact_lists = exact_lists

    def best(self, contexts: ContextEncoding, *, exactness: Found = "approximate", list_length: int) -> list[Best]:
        """The result of each context, at least as certain as `exactness`.

        Lists are doubled where they name fewer than k, or nothing is proven and it must be. Everything is fetched and
        scored where they could name as much, where they cannot prove what they must, and for "exact".
        """
        if self.k == 0:
            return [Best([], [], "exact")] * contexts.batch_size
        no_proof = exactness == "certified" and not self.exact_lists
        if exactness == "exact" or no_proof or contexts.keys is not None:  # of which no list says anything
            return self._everything(contexts)
        length = min(list_length, LONGEST_LIST)
        at_once = max(1, _NAMED_AT_ONCE // (contexts.n_codes * length))
        results: list[Best] = []
        for i in range(0, contexts.batch_size, at_once):
            results += self._until(contexts.select(slice(i, i + at_once)), exactness, length)
        return results

    def _until(self, contexts: ContextEncoding, exactness: Found, length: int) -> list[Best]:
        longest = max(length, min(LONGEST_LIST, _MOST_NAMED // contexts.n_codes))
        results: dict[int, Best] = {}
        waiting = list(range(contexts.batch_size))
        while waiting and length <= longest and contexts.n_codes * length < self.available:
            for i, best in zip(waiting, self._from_lists(_part(contexts, waiting), length), strict=True):
                if len(best.keys) == self.k and (best.found == "certified" or exactness == "approximate"):
                    results[i] = best
            waiting = [i for i in waiting if i not in results]
            length *= 2
        if waiting:
            results |= zip(waiting, self._everything(_part(contexts, waiting)), strict=True)
        return [results[i] for i in range(contexts.batch_size)]

    def _everything(self, contexts: ContextEncoding) -> list[Best]:
        """By fetching and scoring all candidates, a page at a time. In memory are a page and the best so far."""
        running, names, seen = RunningTopK(self.k), dict[int, str](), 0
        for keys, vectors in self.collection.pages(self.condition, dim=contexts.dim):
            scores = score(contexts, vectors.to(contexts.vectors.device), attention=self.attention)
            running.add(scores, torch.arange(seen, seen + len(keys), device=scores.device))
            names |= dict(enumerate(keys, start=seen))
            names = {place: names[place] for place in running.best.indices.unique().tolist()}
            seen += len(keys)
        if seen == 0:  # another process has removed them
            return [Best([], [], "exact")] * contexts.batch_size
        scores, places = running.best
        return [
            Best([names[place] for place in row], values, "exact")
            for row, values in zip(places.tolist(), scores.tolist(), strict=True)
        ]

    def _from_lists(self, contexts: ContextEncoding, length: int) -> list[Best]:
        """The k best, or fewer, of what lists of this length name."""
        real = contexts.mask
        if real is None:
            real = torch.ones(contexts.vectors.shape[:2], dtype=torch.bool, device=contexts.vectors.device)
        codes = contexts.vectors[real].float().cpu()  # [all codes of all contexts, dim]
        answers = iter(self.collection.nearest(codes.numpy(), length, self.condition) if len(codes) else [])
        lists = [list(islice(answers, n)) for n in real.sum(dim=1).tolist()]
        keys, vectors = self.collection.vectors(
            {key for own in lists for named in own for key in named}, dim=contexts.dim
        )
        place_of = {key: place for place, key in enumerate(keys)}

        results: list[Best] = []
        for i, own in enumerate(lists):
            places = sorted({place_of[key] for named in own for key in named if key in place_of})
            if not places:
                results.append(Best([], [], "approximate"))
                continue
            chosen = vectors[torch.tensor(places)].to(contexts.vectors.device)
            found = search(contexts.select(i), chosen, k=min(self.k, len(places)), attention=self.attention)
            named = [keys[places[column]] for column in found.indices[0].tolist()]
            results.append(Best(named, found.scores[0].tolist(), "approximate"))
        if not (self.exact_lists and keys):
            return results
        proven = self._proven(results, lists, codes, length=length, largest_norm=float(vectors.norm(dim=1).max()))
        return [best._replace(found="certified") if i in proven else best for i, best in enumerate(results)]

    def _proven(
        self,
        results: Sequence[Best],
        lists: Sequence[Sequence[dict[str, float]]],
        codes: Tensor,
        *,
        length: int,
        largest_norm: float,
    ) -> set[int]:
        """The contexts whose result is proven: no candidate outside their lists can have a score above the k-th.

        Outside a code's list no product is above the last in it, and no score above the largest product. But two fp32
        products, Milvus's and ours, differ by rounding: by dim x 2^-24 x |c| |y| each, twice that for the score. So
        the proof holds for candidates up to some norm, and Milvus is asked whether there is one above.
        """
        rounding = iter((2 * codes.size(1) * torch.finfo(torch.float32).eps * codes.norm(dim=1)).tolist())
        norms: dict[int, float] = {}
        for i, (best, own) in enumerate(zip(results, lists, strict=True)):
            ends = [(min(named.values()), unit) for named, unit in zip(own, islice(rounding, len(own)), strict=True)]
            if len(best.keys) < self.k or any(len(named) < length for named in own):
                continue  # a list of all that there are is one of everything: it is not worth a case of its own
            norms[i] = min((best.scores[-1] - last) / max(unit, 1e-30) for last, unit in ends)
        norms = {i: norm for i, norm in norms.items() if norm >= largest_norm}
        if norms and self.collection.any(f"norm > {min(*norms.values(), 1e30):f}"):
            return set()
        return set(norms)


def _part(contexts: ContextEncoding, rows: list[int]) -> ContextEncoding:
    return contexts.select(torch.tensor(rows, device=contexts.vectors.device))
