"""Merges what several indexes find: the best of all of them, each candidate once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polyencoder.index.base import Index
from polyencoder.index.entries import canonical
from polyencoder.index.hits import Found, Hit
from polyencoder.index.options import SearchOptions

_WEAKEST: dict[Found, int] = {"exact": 0, "certified": 1, "approximate": 2, "words": 3}
_Same = tuple[str, str, str | None]


class Answer(NamedTuple):
    """What an index finds for each context."""

    hits: list[list[Hit]]
    empty: Found = "exact"
    """How an empty list was found."""

    @classmethod
    def of(cls, index: Index, hits: list[list[Hit]], options: SearchOptions) -> Answer:
        """The answer of a search by vectors, which may find nothing although there are candidates."""
        if all(hits) or options.words_only or options.exactness not in (None, "approximate") or not index.approximates:
            return cls(hits)
        return cls(hits, "approximate" if index.count(options.filter) else "exact")

    def found(self, place: int) -> Found:
        """How the list of this context was found."""
        return self.hits[place][0].found if self.hits[place] else self.empty


def best_of(parts: Sequence[tuple[int, list[Hit], Found]], missing: tuple[int, ...] | None, *, k: int) -> list[Hit]:
    """The k best hits of the indexes for one context, of equal ones those of the first index.

    How they were found is what holds for all indexes.
    """
    hits: dict[_Same, Hit] = {}
    for number, some, _ in parts:
        for hit in some:
            hits.setdefault(_same(hit), hit._replace(part=number, missing=missing))
    weakest: Found = max((found for *_, found in parts), key=_WEAKEST.__getitem__, default="exact")
    by_words = weakest == "words"
    best = sorted(hits.values(), key=lambda hit: -((hit.word_score or 0.0) if by_words else hit.score))
    return [hit._replace(found=weakest) for hit in best[:k]]


def in_first_parts(*lists: list[Hit]) -> list[list[Hit]]:
    """The lists with each candidate in one part: the first one that any of the lists has it from."""
    first: dict[_Same, int] = {}
    for hit in (hit for hits in lists for hit in hits):
        assert hit.part is not None
        first[_same(hit)] = min(hit.part, first.get(_same(hit), hit.part))
    return [[hit._replace(part=first[_same(hit)]) for hit in hits] for hits in lists]


def _same(hit: Hit) -> _Same:
    """Equal for what is one candidate, in whichever indexes."""
    return hit.id, hit.text, canonical(hit.metadata)
