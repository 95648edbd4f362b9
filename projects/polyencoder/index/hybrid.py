"""Hybrid search: one order of what the vectors find and what the words find.

Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009) adds 1 / (60 + rank) over both lists. It reads ranks
alone, so the scores need not be comparable.

A weighted sum adds w times the ranker's score and 1 - w times BM25, each scaled to 0 to 1 for each context. It is the
convex combination of Bruch, Gai and Ingber ("An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 2023), who
find it better than reciprocal ranks in and out of the domain that its weight was fitted to, for which few examples are
enough. It keeps how much better a candidate is, which ranks do not. BM25 is divided by its best, as 0 is the least that
it can be (their theoretical min-max), and is 0 of what words did not find. The ranker's scores have no such least, so
the lowest of both lists' first candidates is 0 (min-max).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polyencoder.index.hits import Hit
from polyencoder.index.options import Fusion

DEPTH = 100
"""The least number of candidates in each list. Scores are scaled by the first ones of this number."""
_K = 60  # k of the paper


class Scaled(NamedTuple):
    """A hit with the scores of a weighted sum."""

    hit: Hit
    """With the sum of its reciprocal ranks as `fused_score`."""
    vectors: float
    words: float

    def sum(self, weight: float) -> float:
        """The weighted sum; `weight` is the vectors'."""
        return weight * self.vectors + (1 - weight) * self.words


def fused(
    by_vectors: Sequence[Hit], by_words: Sequence[Hit], *, fusion: Fusion, weight: float | None = None
) -> list[Hit]:
    """The hits of both lists, each best first: one for each candidate, in the order that `fusion` gives.

    A hit in both is the vectors', with its `word_score`. Texts have ranks: equal ones share theirs. Of equal sums the
    higher score comes first.

    Args:
        weight: of the vectors, for the fusion "weight".
    """
    if fusion == "score":
        return sorted(_both(by_vectors, by_words), key=lambda hit: -hit.score)
    if fusion == "weight":
        assert weight is not None
        sums = [one.hit._replace(fused_score=one.sum(weight)) for one in scaled(by_vectors, by_words)]
    else:
        sums = _reciprocal_ranks(by_vectors, by_words)
    return sorted(sums, key=lambda hit: (-(hit.fused_score or 0), -hit.score))


def scaled(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Scaled]:
    """The hits of both lists with their scaled scores."""
    first = [hit.score for hit in (*by_vectors[:DEPTH], *by_words[:DEPTH])]
    least = min(first, default=0.0)
    span = max(first, default=0.0) - least or 1.0
    best = (by_words[0].word_score if by_words else 0.0) or 1.0
    hits = _reciprocal_ranks(by_vectors, by_words)
    return [Scaled(hit, (hit.score - least) / span, (hit.word_score or 0.0) / best) for hit in hits]


def _reciprocal_ranks(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    sums: dict[str, float] = {}
    for ranking in (by_vectors, by_words):
        for rank, text in enumerate(dict.fromkeys(hit.text for hit in ranking), start=1):
            sums[text] = sums.get(text, 0.0) + 1 / (_K + rank)
    return [hit._replace(fused_score=sums[hit.text]) for hit in _both(by_vectors, by_words)]


def _both(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    word_scores = {hit.key: hit.word_score for hit in by_words}
    known = {hit.key for hit in by_vectors}
    hits = [hit._replace(word_score=word_scores.get(hit.key)) for hit in by_vectors]
    return hits + [hit for hit in by_words if hit.key not in known]
