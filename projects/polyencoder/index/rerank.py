"""Re-ranking: a model that reads the tokens of both texts orders the first results of a search.

The results come from the vectors of another model, or from a late-interaction encoder's own.
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

RERANK_K = 50  # for a cross-encoder
OWN_K = 100  # for a late-interaction encoder


def rerank(
    ranker: TextRanker, contexts: Sequence[Context], hits: Sequence[Sequence[Hit]], *, k: int = 50
) -> list[list[Hit]]:
    """Orders the hits of each context's first `k` texts by the ranker's scores; other hits follow.

    A hit keeps its `score`; re-ranked ones get a `rerank_score`.

    Args:
        ranker: a cross-encoder or late-interaction encoder.
        contexts: those of the hits.
        hits: [contexts], each best first.
        k: different texts of each context to re-rank; equal scores keep their order.

    Raises:
        InputError: `ranker` only compares vectors, `k` is below 1, or contexts and lists of hits differ in number.
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
    texts = [list(dict.fromkeys(hit.text for hit in found)) for found in firsts]  # each text is scored once
    width = max(map(len, texts))
    index = torch.tensor([[place[text] for text in own] + [-1] * (width - len(own)) for own in texts])
    scores = score_texts(ranker, contexts, list(place), index).tolist()
    ordered = [
        _ordered(found, dict(zip(own, values, strict=False)))
        for found, own, values in zip(firsts, texts, scores, strict=True)
    ]
    return [[*best, *found[len(best) :]] for best, found in zip(ordered, hits, strict=True)]


def first_texts(hits: Sequence[Hit], k: int) -> int:
    """The number of first hits that contain the first `k` different texts; all if there are fewer."""
    texts: set[str] = set()
    for place, hit in enumerate(hits):
        texts.add(hit.text)
        if len(texts) > k:
            return place
    return len(hits)


def check_reranker(ranker: TextRanker, *, k: int) -> None:
    """Raises InputError unless the ranker reads pairs and `k` is at least 1."""
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
