"""`Hit`: a result of a search; and other orders of hits: re-ranked, fused, unlike each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from polyencoder.errors import InputError
from polyencoder.index.filters import Exactness
from polyencoder.search.contexts import Array

Method = Exactness | Literal["words"]
"""The method that found a hit: a search by vectors, of this exactness, or by words alone."""

Vectors = Mapping[str, Array]
"""Vectors by the ids of candidates."""


TOP_K = 10
"""Hits of a search by default."""
LATE_RERANK_K = 100
"""Texts of a late-interaction encoder's searches that it re-ranks itself by default."""


class Hit(NamedTuple):
    """A result of a search."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any] | None
    found: Method
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
    """The promised maximum share of wrong ones among such hits; None but for the most probable hit with a promise."""

    @property
    def relevance(self) -> float:
        """The score that orders the hits, unless words alone do."""
        scores = (self.rerank_score, self.fused_score)
        return next((score for score in scores if score is not None), self.score)


def count_first(hits: Sequence[Hit], k: int) -> int:
    """The number of first hits that contain the first `k` different texts; all if there are fewer."""
    texts: set[str] = set()
    for number, hit in enumerate(hits):
        texts.add(hit.text)
        if len(texts) > k:
            return number
    return len(hits)


def rerank_hits(hits: Sequence[Hit], scores: Mapping[str, float], *, first: int) -> list[Hit]:
    """The `first` hits by the scores of their texts, best first, equal ones in their order; the others follow."""
    best = sorted(hits[:first], key=lambda hit: -scores[hit.text])
    return [*(hit._replace(rerank_score=scores[hit.text]) for hit in best), *hits[first:]]


def diversify(
    hits: Sequence[list[Hit]], get_vectors: Callable[[Iterable[str]], Vectors], *, k: int, depth: int, diversity: float
) -> list[list[Hit]]:
    """Moves k hits of each context to the front, by maximal marginal relevance; the others follow.

    They are chosen from the first `depth` hits, after re-ranking only from re-ranked ones. A hit keeps its scores and
    its probability; `Hit.considered` says from how many it was chosen.
    """
    pools = [
        [hit for hit in ranked[:depth] if (hit.rerank_score is None) == (ranked[0].rerank_score is None)]
        for ranked in hits
    ]
    vectors = get_vectors(hit.id for pool in pools for hit in pool)
    dim = max((len(vector) for vector in vectors.values()), default=1)
    diverse = []
    for ranked, pool in zip(hits, pools, strict=True):
        scores = np.array([hit.relevance for hit in pool])
        rows = np.zeros((len(pool), dim))
        for row, hit in enumerate(pool):
            rows[row] = vectors.get(hit.id, 0.0)  # 0 if it was removed meanwhile
        positions = choose_diverse(scores, rows, k=k, diversity=diversity)
        chosen = [hit._replace(considered=hit.considered or len(pool)) for hit in map(pool.__getitem__, positions)]
        chosen_positions = {*positions}
        diverse.append(chosen + [hit for position, hit in enumerate(ranked) if position not in chosen_positions])
    return diverse


# Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009) adds 1 / (60 + rank) over the lists of a hybrid
# search. It reads ranks alone, so that scores of vectors and words need not be comparable.

DEPTH = 100
"""The number of candidates in each list that are fused; those behind follow."""
_K = 60  # k of the paper


def fuse(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    """The hits of both lists, each best first: one for each candidate, by the sums of their reciprocal ranks.

    A hit in both is the one of `by_vectors`, with its `word_score`. Texts have ranks: hits of equal texts share a rank.
    Of equal sums the higher score comes first. Sums are of the first `DEPTH` hits of each list; the others follow by
    the better of their ranks, so that longer lists only add hits at the end.
    """
    best = _sum_ranks(by_vectors[:DEPTH], by_words[:DEPTH])
    ids, behind = {hit.id for hit in best}, list[Hit]()
    for rank, hits in enumerate(zip_longest(by_vectors[DEPTH:], by_words[DEPTH:]), start=DEPTH + 1):
        for hit in filter(None, hits):
            if hit.id not in ids:
                ids.add(hit.id)
                behind.append(hit._replace(fused_score=1 / (_K + rank)))
    return best + behind


def _sum_ranks(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    sums: dict[str, float] = {}
    for ranking in (by_vectors, by_words):
        for rank, text in enumerate(dict.fromkeys(hit.text for hit in ranking), start=1):
            sums[text] = sums.get(text, 0.0) + 1 / (_K + rank)
    word_scores = {hit.id: hit.word_score for hit in by_words}
    ids = {hit.id for hit in by_vectors}
    hits = [hit._replace(word_score=word_scores.get(hit.id)) for hit in by_vectors]
    hits += [hit for hit in by_words if hit.id not in ids]
    return sorted(
        (hit._replace(fused_score=sums[hit.text]) for hit in hits), key=lambda hit: (-sums[hit.text], -hit.score)
    )


def compute_pool_size(k: int) -> int:
    """The number of best candidates from which k are chosen."""
    return max(4 * k, 50)


def choose_diverse(scores: Array, vectors: Array, *, k: int, diversity: float) -> list[int]:
    """Chooses k of n candidates by maximal marginal relevance (Carbonell and Goldstein, 1998), in this order.

    Each choice has the largest (1 - diversity) r - diversity s of those that are left: r is its score, scaled so that
    the n have 0 to 1, and s its largest cosine with a candidate that was chosen before. The first choice is the best
    score; of equal ones the first counts. A zero vector is similar to nothing.

    Args:
        scores: [n], on any scale.
        vectors: [n, dim].
        k: the number to choose; all if there are fewer.
        diversity: 0 orders by scores alone, 1 by similarities alone.
    """
    scores, vectors = np.asarray(scores, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    span = np.ptp(scores) if len(scores) else 0.0
    relevance = (1 - diversity) * ((scores - scores.min()) / span) if span > 0 else np.zeros(len(scores))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    value, nearest, chosen = relevance.copy(), np.full(len(scores), -np.inf), list[int]()
    for _ in range(min(k, len(scores))):
        nearest_row = int(np.argmax(value if chosen else scores))
        chosen.append(nearest_row)
        nearest = np.maximum(nearest, directions @ directions[nearest_row])
        value = relevance - diversity * nearest
        value[chosen] = -np.inf
    return chosen


def check_diversity(diversity: Any) -> float:
    """A diversity from 0 to 1; 0 for None. InputError for anything else."""
    if diversity is None:
        return 0.0
    if isinstance(diversity, bool) or not isinstance(diversity, (int, float)) or not 0 <= diversity <= 1:
        raise InputError(f"diversity is {diversity!r:.60}; it must be a number from 0 to 1", argument="diversity")
    return float(diversity)
