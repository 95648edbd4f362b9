"""Re-ranking: a model that reads the tokens of both texts orders the first results of a search.

The results come from the vectors of another model, or from a late-interaction encoder's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from polyencoder.checks import check_count
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.encoding.scorer import score_by_tokens, score_lists
from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.hits import Hit, count_first, rerank_hits
from polyencoder.search.contexts import Contexts

RERANK_K = 50  # for a cross-encoder


def rerank(
    ranker: TextRanker,
    contexts: Sequence[Context],
    hits: Sequence[Sequence[Hit]],
    *,
    k: int = 50,
    encoded: Contexts | None = None,
    index: Index | None = None,
) -> list[list[Hit]]:
    """Orders the hits of each context's first `k` texts by the ranker's scores; other hits follow.

    A hit keeps its `score`; re-ranked ones get a `rerank_score`.

    Args:
        ranker: a cross-encoder or late-interaction encoder.
        hits: [contexts], each best first.
        k: different texts of each context to re-rank; equal scores keep their order.
        encoded: the contexts as this ranker encoded them, with their tokens; None to encode them here.
        index: this ranker's; token vectors that it holds are not computed again.

    Raises InputError if `ranker` only compares vectors, or contexts and lists of hits differ in number.
    """
    check_reranker(ranker, k=k)
    if len(contexts) != len(hits):
        raise InputError(f"{len(contexts)} contexts, but hits of {len(hits)}: give one list of hits for each context")
    firsts = [list(context_hits[: count_first(context_hits, k)]) for context_hits in hits]
    texts = [list(dict.fromkeys(hit.text for hit in first)) for first in firsts]  # each text is scored once
    if not any(texts):
        return firsts
    if ranker.model.token_dim is not None:
        fingerprint = ranker.model.token_fingerprint
        stored = None if index is None else partial(index.token_vectors, fingerprint=fingerprint)
        encoded = ranker.encode_contexts(contexts) if encoded is None else encoded
        scores = score_by_tokens(ranker, encoded, texts, stored=stored)
    else:
        scores = [values.tolist() for values in score_lists(ranker, contexts, texts)]
    return [
        rerank_hits(context_hits, dict(zip(context_texts, values, strict=True)), first=len(first))
        for first, context_texts, values, context_hits in zip(firsts, texts, scores, hits, strict=True)
    ]


def check_reranker(ranker: TextRanker, *, k: int) -> None:
    """Raises InputError unless the ranker reads pairs and `k` is at least 1."""
    if not ranker.model.reads_pairs:
        raise InputError(
            f"a {ranker.model.title} cannot re-rank: give a cross-encoder, which reads a context "
            "and a candidate together; `polyencoder train --architecture cross --backbone ENCODER --train FILE --out "
            "FOLDER` trains one",
            argument="rerank",
        )
    check_count("rerank_k", k)
