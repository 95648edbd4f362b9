"""The best hits of contexts, from a search that is repeated for more until each context has enough."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from polyencoder.index.hits import Hit, count_first
from polyencoder.text.context import normalize_text

if TYPE_CHECKING:
    from polyencoder.index.options import SearchOptions

MAX_CONSIDERED = 1 << 14
"""The best candidates of a context among which groups are looked for."""

_MAX_HITS = 1 << 18  # hits of a repeated search in memory


def find_enough(
    search: Callable[[Sequence[int], int], list[list[Hit]]],
    options: SearchOptions,
    *,
    spoken: Sequence[Collection[str]],
    hits: int,
    groups: int,
    texts: int = 0,
    group_texts: int = 0,
) -> tuple[list[list[Hit]], int]:
    """The best hits of each context, without its own turns.

    Each context gets at least `hits` hits with `texts` different texts, and after `limit_groups` at least `groups` with
    `group_texts`, if the index has as many. A context that has fewer is searched again, for four times as many. With
    `group_by` up to `MAX_CONSIDERED` are read, and hits that count for neither are left out.

    Args:
        search: finds a number of hits for each of the contexts at these positions, with neither groups nor
            diversity.
        spoken: the turns of each context, as `normalize_lines` makes them.

    Returns:
        The hits of each context, and the number of better candidates that were left out as turns.
    """
    best: list[list[Hit]] = [[] for _ in spoken]
    count = max(hits, texts) + max(map(len, spoken), default=0)
    limit = None if options.group_by is None else max(count, MAX_CONSIDERED)
    positions: Sequence[int] = range(len(spoken))
    left_out, batch_size = 0, len(spoken)
    while positions:
        incomplete = []
        for start in range(0, len(positions), batch_size):
            part = positions[start : start + batch_size]
            for row, hits_of_row in zip(part, search(part, count), strict=True):
                turns = spoken[row]
                eligible = (
                    [hit for hit in hits_of_row if normalize_text(hit.text) not in turns] if turns else hits_of_row
                )
                grouped = limit_groups(eligible, options)
                whole = len(hits_of_row) < count or (limit is not None and count >= limit)
                # an index may have a text several times
                if not whole and not (_are_enough(eligible, hits, texts) and _are_enough(grouped, groups, group_texts)):
                    incomplete.append(row)
                    continue
                if turns:
                    last = grouped[:hits][-1:]
                    better = hits_of_row[: hits_of_row.index(last[0])] if last else hits_of_row
                    left_out += sum(normalize_text(hit.text) in turns for hit in better)
                first = max(hits, count_first(eligible, texts))  # of these, a re-ranker may prefer others of a group
                needed = max(groups, count_first(grouped, group_texts))
                best[row] = eligible if limit is None else _select_useful(eligible, grouped, first=first, count=needed)
        positions, count = incomplete, 4 * count if limit is None else min(4 * count, limit)
        batch_size = max(1, _MAX_HITS // count)
    return best, left_out


def _are_enough(hits: Sequence[Hit], count: int, texts: int) -> bool:
    return len(hits) >= count and (texts == 0 or len({hit.text for hit in hits}) >= texts)


def limit_groups(hits: list[Hit], options: SearchOptions) -> list[Hit]:
    """The first hits of each group, of one value in the metadata's `group_by`, and all that lack it or have null."""
    if (key := options.group_by) is None:
        return hits
    size = options.group_size or 1
    counts: Counter[str] = Counter()
    remaining = []
    for hit in hits:
        value = (hit.metadata or {}).get(key)
        if value is not None:
            if isinstance(value, float) and value.is_integer():
                value = int(value)  # 1.0 and 1 are one group, as in filters
            group = json.dumps(value, sort_keys=True)
            counts[group] += 1
            if counts[group] > size:
                continue
        remaining.append(hit)
    return remaining


def _select_useful(hits: Sequence[Hit], grouped: Sequence[Hit], *, first: int, count: int) -> list[Hit]:
    """The `first` hits, and later ones that are among the first `count` of `grouped`, which `limit_groups` keeps.

    The `considered` of each is the number of hits that were read to find them.
    """
    needed = len(hits) if len(grouped) < count else hits.index(grouped[count - 1]) + 1
    considered = min(len(hits), max(first, needed))
    keys = {hit.id for hit in grouped}
    return [
        hit._replace(considered=considered)
        for idx, hit in enumerate(hits[:considered])
        if idx < first or hit.id in keys
    ]
