"""Re-ranking: a model that reads the tokens of both texts orders the first results of a search.

The results come from the vectors of another model, or from a late-interaction encoder's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyencoder.checks import checked_count
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.encoding.scorer import score_lists
from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.hits import Hit, first_texts, reranked_hits
from polyencoder.modeling.mode import in_evaluation
from polyencoder.scoring import ContextEncoding, check_scores

RERANK_K = 50  # for a cross-encoder
_TEXTS = 1 << 11  # of several contexts whose token vectors are in memory at once


def rerank(
    ranker: TextRanker,
    contexts: Sequence[Context],
    hits: Sequence[Sequence[Hit]],
    *,
    k: int = 50,
    encoded: ContextEncoding | None = None,
    index: Index | None = None,
) -> list[list[Hit]]:
    """Orders the hits of each context's first `k` texts by the ranker's scores; other hits follow.

    A hit keeps its `score`; re-ranked ones get a `rerank_score`.

    Args:
        ranker: a cross-encoder or late-interaction encoder.
        hits: [contexts], each best first.
        k: different texts of each context to re-rank; equal scores keep their order.
        encoded: the contexts as this ranker encoded them, with their tokens; None to read them here.
        index: of this ranker; what it holds of a text is not read again.

    Raises:
        InputError: `ranker` only compares vectors, `k` is below 1, or contexts and lists of hits differ in number.
    """
    check_reranker(ranker, k=k)
    if len(contexts) != len(hits):
        raise InputError(f"{len(contexts)} contexts, but hits of {len(hits)}: give one list of hits for each context")
    firsts = [list(found[: first_texts(found, k)]) for found in hits]
    texts = [list(dict.fromkeys(hit.text for hit in found)) for found in firsts]  # each text is scored once
    if not any(texts):
        return firsts
    if ranker.model.token_dim is not None:
        scores = _token_scores(
            ranker, ranker.encode_contexts(contexts) if encoded is None else encoded, texts, index=index
        )
    else:
        scores = [own.tolist() for own in score_lists(ranker, contexts, texts)]
    return [
        reranked_hits(found, dict(zip(own, values, strict=True)), first=len(first))
        for first, own, values, found in zip(firsts, texts, scores, hits, strict=True)
    ]


@torch.inference_mode()
def _token_scores(
    ranker: TextRanker, contexts: ContextEncoding, texts: Sequence[list[str]], *, index: Index | None
) -> list[list[float]]:
    """The scores of each context's texts by token vectors; the texts of several contexts are read together."""
    model, text, scores = ranker.model, ranker.text, []
    at_once = max(1, _TEXTS // max(map(len, texts)))
    with in_evaluation(model):
        for first in range(0, len(texts), at_once):
            some = texts[first : first + at_once]
            distinct = dict.fromkeys(text for own in some for text in own)
            read = {} if index is None else index.token_vectors(distinct, model)
            if new := [one for one in distinct if one not in read]:
                ids = text.candidate_ids(new, remember=False)
                read |= zip(new, ranker.reader(model, text, ids), strict=True)
            for row, own in enumerate(some, start=first):
                found = model.rescore(contexts.select(row), [read[one] for one in own]) if own else torch.empty(1, 0)
                check_scores(found)
                scores.append(found[0].tolist())
    return scores


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
