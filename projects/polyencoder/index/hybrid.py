"""Hybrid search: one order of what the vectors find and what the words find.

Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009) adds 1 / (60 + rank) over both lists. It reads ranks
alone, so the scores need not be comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from polyencoder.index.hits import Hit

DEPTH = 100
"""The number of candidates in each list that are fused; those behind follow."""
_K = 60  # k of the paper


def fused(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    """The hits of both lists, each best first: one for each candidate, by the sums of their reciprocal ranks.

    A hit in both is the vectors', with its `word_score`. Texts have ranks: equal ones share theirs. Of equal sums the
    higher score comes first. Sums are of the first `DEPTH` hits of each list; the others follow by the better of their
    ranks, so that longer lists only add hits at the end.
    """
    best = _summed(by_vectors[:DEPTH], by_words[:DEPTH])
    return [*best, *_behind(best, by_vectors, by_words)]


def _summed(by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    sums: dict[str, float] = {}
    for ranking in (by_vectors, by_words):
        for rank, text in enumerate(dict.fromkeys(hit.text for hit in ranking), start=1):
            sums[text] = sums.get(text, 0.0) + 1 / (_K + rank)
    word_scores = {hit.id: hit.word_score for hit in by_words}
    known = {hit.id for hit in by_vectors}
    hits = [hit._replace(word_score=word_scores.get(hit.id)) for hit in by_vectors]
    hits += [hit for hit in by_words if hit.id not in known]
    return sorted(
        (hit._replace(fused_score=sums[hit.text]) for hit in hits), key=lambda hit: (-sums[hit.text], -hit.score)
    )


def _behind(best: Sequence[Hit], by_vectors: Sequence[Hit], by_words: Sequence[Hit]) -> Iterator[Hit]:
    ids = {hit.id for hit in best}
    for rank, hits in enumerate(zip_longest(by_vectors[DEPTH:], by_words[DEPTH:]), start=DEPTH + 1):
        for hit in filter(None, hits):
            if hit.id not in ids:
                ids.add(hit.id)
                yield hit._replace(fused_score=1 / (_K + rank))
