"""`Hit`: a result of a search; and hits that are unlike each other, by `ranker.diversity`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from polyencoder.index.diversity import marginal_relevance
from polyencoder.index.filters import Exactness

Found = Exactness | Literal["words"]
"""How a hit was found: by vectors, with this exactness of their search; or by words alone."""

Vectors = Mapping[str, np.ndarray[Any, Any]]
"""Vectors by the ids of candidates."""


TOP_K = 10
"""Hits of a search by default."""
OWN_K = 100
"""Texts of its own searches that a late-interaction encoder re-ranks by default."""


class Hit(NamedTuple):
    """A result of a search."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any] | None
    found: Found
    rerank_score: float | None = None
    """The cross-encoder's score, on another scale; None without re-ranking."""
    probability: float | None = None
    """The probability that it is the right one; None if the model that ordered the hits is not calibrated."""
    considered: int | None = None
    """The number of hits from which a search with `diversity` or `group_by` chose; None without them."""
    word_score: float | None = None
    """BM25 of the context's words (PostgreSQL: ts_rank by rarity); None if words did not find it."""
    fused_score: float | None = None
    """The sum of reciprocal ranks that orders a hybrid search; None without it."""
    risk: float | None = None
    """Of the most probable hit: the promised largest share of wrong ones among such hits; None without a promise."""

    @property
    def relevance(self) -> float:
        """The score that orders the hits, unless words alone do."""
        scores = (self.rerank_score, self.fused_score)
        return next((score for score in scores if score is not None), self.score)


def first_texts(hits: Sequence[Hit], k: int) -> int:
    """The number of first hits that contain the first `k` different texts; all if there are fewer."""
    texts: set[str] = set()
    for place, hit in enumerate(hits):
        texts.add(hit.text)
        if len(texts) > k:
            return place
    return len(hits)


def reranked_hits(hits: Sequence[Hit], scores: Mapping[str, float], *, first: int) -> list[Hit]:
    """The `first` hits by the scores of their texts, best first, equal ones in their order; the others follow."""
    best = sorted(hits[:first], key=lambda hit: -scores[hit.text])
    return [*(hit._replace(rerank_score=scores[hit.text]) for hit in best), *hits[first:]]


def diverse_hits(
    hits: Sequence[list[Hit]], vectors_of: Callable[[Iterable[str]], Vectors], *, k: int, most: int, diversity: float
) -> list[list[Hit]]:
    """Moves k hits of each context to the front, by maximal marginal relevance; the others follow.

    They are chosen from the first `most` hits, or, after re-ranking, from those of them that were re-ranked. A hit
    keeps its scores and its probability; `Hit.considered` of the chosen says from how many.
    """
    pools = [
        [hit for hit in found[:most] if (hit.rerank_score is None) == (found[0].rerank_score is None)] for found in hits
    ]
    vectors = vectors_of(hit.id for pool in pools for hit in pool)
    dim = max((len(vector) for vector in vectors.values()), default=1)
    diverse = []
    for found, pool in zip(hits, pools, strict=True):
        scores = np.array([hit.relevance for hit in pool])
        own = np.zeros((len(pool), dim))
        for row, hit in enumerate(pool):
            own[row] = vectors.get(hit.id, 0.0)  # 0 if it was removed meanwhile
        places = marginal_relevance(scores, own, k=k, diversity=diversity)
        chosen = [pool[place]._replace(considered=pool[place].considered or len(pool)) for place in places]
        taken = {*places}
        diverse.append(chosen + [hit for place, hit in enumerate(found) if place not in taken])
    return diverse
