"""At most n hits for each value of a metadata field, searching for more until there are enough; and unlike hits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from polyencoder.index.hits import TOP_K, Hit, Vectors, diverse_hits, pool_size

if TYPE_CHECKING:
    from polyencoder.index.options import SearchOptions

MOST_CONSIDERED = 1 << 14
"""The best candidates of a context among which groups are looked for."""

Search = Callable[[Sequence[int], int], list[list[Hit]]]
"""From the places of contexts, and a number of hits, to the hits of each."""

_AT_ONCE = 1 << 18  # hits of a repeated search in memory


def limited(hits: Iterable[Hit], key: str, *, size: int) -> list[Hit]:
    """The hits, of which the first `size` of each group: those with the same value in their metadata's field `key`.

    A hit whose metadata lacks the field, or has null there, is in no group, and is kept.
    """
    counts: Counter[str] = Counter()
    kept = []
    for hit in hits:
        value = (hit.metadata or {}).get(key)
        if value is not None:
            if isinstance(value, float) and value.is_integer():
                value = int(value)  # 1.0 and 1 are one group, as in filters
            group = json.dumps(value, sort_keys=True)
            counts[group] += 1
            if counts[group] > size:
                continue
        kept.append(hit)
    return kept


def of_use(hits: Sequence[Hit], kept: Sequence[Hit], *, first: int, count: int) -> list[Hit]:
    """The `first` hits, and of the later ones those among the first `count` of `kept`.

    Args:
        hits: best first.
        kept: those that `limited` keeps.

    Returns:
        Hits whose `considered` is the number that one goes through to find these.
    """
    needed = len(hits) if len(kept) < count else hits.index(kept[count - 1]) + 1
    considered = min(len(hits), max(first, needed))
    keys = {hit.id for hit in kept}
    return [
        hit._replace(considered=considered)
        for place, hit in enumerate(hits[:considered])
        if place < first or hit.id in keys
    ]


def chosen(
    search: Search, options: SearchOptions, *, contexts: int, vectors_of: Callable[[Iterable[str]], Vectors]
) -> list[list[Hit]]:
    """The hits that `group_by` and `diversity` choose among those of a search with neither.

    Args:
        search: as for `grown`.
        contexts: their number.
        vectors_of: the vectors of candidates, by their ids.
    """
    k = options.top_k or TOP_K
    most = pool_size(k) if options.diversity else k
    if (key := options.group_by) is None:
        found = search(range(contexts), most)
    else:
        size = options.group_size or 1

        def take(_: int, hits: list[Hit], whole: bool) -> list[Hit] | None:
            kept = limited(hits, key, size=size)
            if not whole and len(kept) < k:
                return None
            return limited(of_use(hits, kept, first=most, count=k), key, size=size)

        found = grown(search, take, contexts=contexts, k=most, most=max(most, MOST_CONSIDERED))
    if options.diversity:
        found = diverse_hits(found, vectors_of, k=k, most=most, diversity=options.diversity)
    return [hits[:k] for hits in found]


def grown(
    search: Search,
    take: Callable[[int, list[Hit], bool], list[Hit] | None],
    *,
    contexts: int,
    k: int,
    most: int | None = None,
) -> list[list[Hit]]:
    """Searches until each context has enough hits: those that have not are searched again for four times as many.

    Args:
        search: called with the places of contexts.
        take: from a context's place, its hits, and whether there are no more, to those that are kept; None where more
            are needed.
        contexts: their number.
        k: the number of hits of the first search.
        most: the number beyond which none are searched for; None for all.
    """
    kept: list[list[Hit]] = [[] for _ in range(contexts)]
    places: Sequence[int] = range(contexts)
    at_once = contexts
    while places:
        short = []
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            for place, hits in zip(some, search(some, k), strict=True):
                taken = take(place, hits, len(hits) < k or (most is not None and k >= most))
                if taken is None:
                    short.append(place)
                else:
                    kept[place] = taken
        places, k = short, 4 * k if most is None else min(4 * k, most)
        at_once = max(1, _AT_ONCE // k)
    return kept
