"""The best hits of contexts, from a search that is repeated for more until each context has enough."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from polyencoder.index.hits import Hit, first_texts
from polyencoder.text import same

if TYPE_CHECKING:
    from polyencoder.index.options import SearchOptions

MOST_CONSIDERED = 1 << 14
"""The best candidates of a context among which groups are looked for."""

_AT_ONCE = 1 << 18  # hits of a repeated search in memory


def enough_hits(
    search: Callable[[Sequence[int], int], list[list[Hit]]],
    options: SearchOptions,
    *,
    said: Sequence[Collection[str]],
    hits: int,
    groups: int,
    texts: int = 0,
    group_texts: int = 0,
) -> tuple[list[list[Hit]], int]:
    """The best hits of each context that are none of its turns.

    They are the best of all such candidates, so that certificates hold: at least `hits` with `texts` different texts,
    and after `limited` at least `groups` with `group_texts`, as far as there are so many. Contexts that have fewer are
    searched again, for four times as many. With `group_by` up to `MOST_CONSIDERED` are looked at, and those that count
    for neither are left out.

    Args:
        search: from the places of contexts, and a number of hits, to the hits of each, with neither groups nor
            diversity.
        said: the turns of each context, as `same` makes them.

    Returns:
        The hits of each context, and the number of better candidates that were left out as turns.
    """
    best: list[list[Hit]] = [[] for _ in said]
    count = max(hits, texts) + max(map(len, said), default=0)
    most = None if options.group_by is None else max(count, MOST_CONSIDERED)
    places: Sequence[int] = range(len(said))
    left_out, at_once = 0, len(said)
    while places:
        short = []
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            for place, found in zip(some, search(some, count), strict=True):
                turns = said[place]
                kept = [hit for hit in found if same(hit.text) not in turns] if turns else found
                grouped = limited(kept, options)
                whole = len(found) < count or (most is not None and count >= most)
                # an index may have a text several times
                if not whole and not (_suffice(kept, hits, texts) and _suffice(grouped, groups, group_texts)):
                    short.append(place)
                    continue
                if turns:
                    last = grouped[:hits][-1:]
                    better = found[: found.index(last[0])] if last else found
                    left_out += sum(same(hit.text) in turns for hit in better)
                first = max(hits, first_texts(kept, texts))  # of these, a re-ranker may prefer others of a group
                wanted = max(groups, first_texts(grouped, group_texts))
                best[place] = kept if most is None else _of_use(kept, grouped, first=first, count=wanted)
        places, count = short, 4 * count if most is None else min(4 * count, most)
        at_once = max(1, _AT_ONCE // count)
    return best, left_out


def _suffice(hits: Sequence[Hit], count: int, texts: int) -> bool:
    return len(hits) >= count and (texts == 0 or len({hit.text for hit in hits}) >= texts)


def limited(hits: list[Hit], options: SearchOptions) -> list[Hit]:
    """The first hits of each group, of one value in the metadata's `group_by`, and all that lack it or have null."""
    if (key := options.group_by) is None:
        return hits
    size = options.group_size or 1
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


def _of_use(hits: Sequence[Hit], kept: Sequence[Hit], *, first: int, count: int) -> list[Hit]:
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
