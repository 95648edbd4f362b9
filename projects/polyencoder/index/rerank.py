"""Re-ranking: a model that reads the tokens of both texts, too slow for all candidates, orders the first few.

These are found by the vectors of another model, or by a late-interaction encoder's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyencoder.checks import checked_count
from polyencoder.errors import InputError
from polyencoder.index.base import Hit
from polyencoder.ranker.protocol import Context, TextRanker
from polyencoder.ranker.scorer import score_texts

__all__ = ["OWN_K", "RERANK_K", "check_reranker", "first_texts", "rerank"]

RERANK_K = 50  # texts that a cross-encoder reads
OWN_K = 100  # that a late-interaction encoder reads of those it has found


def rerank(
    ranker: TextRanker, contexts: Sequence[Context], hits: Sequence[Sequence[Hit]], *, k: int = 50
) -> list[list[Hit]]:
    """The hits of each context, those of its first `k` texts in the order of the ranker's scores, others behind.

    A hit keeps its `score`; that of the ranker is the `rerank_score` of the first.

    Args:
        ranker: a cross-encoder or late-interaction encoder.
        contexts: what the hits were found for.
        hits: [contexts], each best first.
        k: how many different texts of each are read again; of equal scores the one that was better before comes first.

    Raises:
        InputError: `ranker` compares vectors alone, `k` is below 1, or there are not as many contexts as lists of hits.
    """
    check_reranker(ranker, k=k)
    if len(contexts) != len(hits):
        raise InputError(f"{len(contexts)} contexts, but hits of {len(hits)}: give one list of hits for each context")
    firsts = [list(found[: first_texts(found, k)]) for found in hits]
    place: dict[str, int] = {}
    for found in firsts:
        for hit in found:
            place.setdefault(hit.text, len(place))
    if not place:
        return firsts
    texts = [list(dict.fromkeys(hit.text for hit in found)) for found in firsts]  # read once: equal texts score alike
    width = max(map(len, texts))
    index = torch.tensor([[place[text] for text in own] + [-1] * (width - len(own)) for own in texts])
    scores = score_texts(ranker, contexts, list(place), index).tolist()
    ordered = [
        _ordered(found, dict(zip(own, values, strict=False)))
        for found, own, values in zip(firsts, texts, scores, strict=True)
    ]
    return [[*best, *found[len(best) :]] for best, found in zip(ordered, hits, strict=True)]


def first_texts(hits: Sequence[Hit], k: int) -> int:
    """The number of first hits that have the first `k` different texts; all if there are no more texts."""
    texts: set[str] = set()
    for place, hit in enumerate(hits):
        texts.add(hit.text)
        if len(texts) > k:
            return place
    return len(hits)


def check_reranker(ranker: TextRanker, *, k: int) -> None:
    """Raise InputError unless the ranker reads pairs, and `k`, how many it reads, at least 1."""
    if not ranker.model.reads_pairs:
        raise InputError(
            f"a {ranker.model.title} cannot re-rank: give a cross-encoder, which reads a context "
            "and a candidate together; `polyencoder train --architecture cross --backbone ENCODER --train FILE --out "
            "FOLDER` trains one",
            argument="rerank",
        )
    checked_count("rerank_k", k)


def _ordered(hits: list[Hit], scores: dict[str, float]) -> list[Hit]:
    """The hits from the highest to the lowest score of their texts."""
    return [hit._replace(rerank_score=scores[hit.text]) for hit in sorted(hits, key=lambda hit: -scores[hit.text])]
