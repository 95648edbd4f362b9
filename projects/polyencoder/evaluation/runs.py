"""Makes runs: a ranker's results for queries, from an index or by re-ranking another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyencoder.calibration import CalibratedRanker
from polyencoder.data.example import Example
from polyencoder.data.loader import iter_batches
from polyencoder.data.trec import Run, sort_best_first
from polyencoder.encoding.protocol import Dialogue, TextRanker
from polyencoder.errors import InputError
from polyencoder.evaluation.examples import example_scores
from polyencoder.index.base import Index
from polyencoder.index.documents import DOCUMENT
from polyencoder.index.filters import Exactness
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.settings.evaluate import DEPTH
from polyencoder.text.dialogue import check_context

_AT_ONCE = 256  # queries whose hits, with their texts, are in memory at once


def search_run(
    ranker: CalibratedRanker,
    index: Index,
    queries: Mapping[str, Dialogue],
    *,
    depth: int = DEPTH,
    exactness: Exactness | None = None,
    effort: int | None = None,
    ignore_identical_ids: bool = False,
) -> dict[str, dict[str, float]]:
    """Searches an index: the first `depth` candidates for each query.

    Candidates that equal their query are results like all others. The scores of a late-interaction encoder are those
    of its tokens for the candidates that it reads again; others keep their order behind them.

    Takes the arguments of `evaluate_retrieval`.

    Raises:
        InputError: the index is empty, or a query has no text.
        ConfigError: an option that the index has no use for.
    """
    if len(index) == 0:
        raise InputError("the index is empty")
    split = index.split is not None
    turns = {id_: check_context(f"query {id_!r}", query) for id_, query in queries.items()}
    extra = 1 if ignore_identical_ids else 0
    options = SearchOptions(top_k=depth + extra, exactness=exactness, effort=effort)
    searcher = Searcher(ranker, index, options, keep_turns=True)
    run: dict[str, dict[str, float]] = {}
    for batch in iter_batches(turns, _AT_ONCE):
        for id_, hits in zip(batch, searcher([turns[id_] for id_ in batch]), strict=True):
            if split:  # judgements are of documents
                hits = [hit._replace(id=(hit.metadata or {})[DOCUMENT]) for hit in hits]
            others = [hit for hit in hits if not (extra and hit.id == id_)][:depth]
            read = [(hit.id, hit.rerank_score) for hit in others if hit.rerank_score is not None]
            run[id_] = _join(read, [(hit.id, hit.score) for hit in others[len(read) :]])
    return run


def rerank_run(
    ranker: TextRanker,
    run: Run,
    queries: Mapping[str, Dialogue],
    texts: Mapping[str, str],
    *,
    depth: int = DEPTH,
) -> dict[str, dict[str, float]]:
    """Re-ranks the first `depth` results of each query with a ranker; later ones follow in their order.

    Takes the arguments of `evaluate_retrieval`. A query without results gets none.

    Raises:
        InputError: a document has no text, or a score is nan.
    """
    ids = [id_ for id_ in queries if run.get(id_)]
    orders = [sort_best_first(run[id_]) for id_ in ids]
    examples = []
    for id_, order in zip(ids, orders, strict=True):
        if (unknown := next((document for document, _ in order[:depth] if document not in texts), None)) is not None:
            raise InputError(f"query {id_!r}: its result {unknown!r} is not among the documents with texts")
        candidates = [texts[document] for document, _ in order[:depth]]
        examples.append(Example(check_context(f"query {id_!r}", queries[id_]), candidates[0], candidates))
    reranked: dict[str, dict[str, float]] = {id_: {} for id_ in ids}
    for number, scores in example_scores(ranker, examples):
        order = orders[number]
        read = [(document, score) for (document, _), score in zip(order, scores.tolist(), strict=False)]
        if any(not math.isfinite(score) for _, score in read):
            raise InputError(f"query {ids[number]!r}: a score is not finite; the model is damaged")
        reranked[ids[number]] = _join(sort_best_first(dict(read)), order[depth:])
    return reranked


def _join(read: Sequence[tuple[str, float]], others: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Joins two lists of results, best first; the second's scores, a step of 1 each, are below the first's."""
    if not read:
        return dict(others)
    steps = {score: step for step, score in enumerate(dict.fromkeys(score for _, score in others), 1)}
    return dict(read) | {document: read[-1][1] - steps[score] for document, score in others}
