"""Evaluates a ranker on examples: scores and metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from polyencoder.checks import check_candidates
from polyencoder.data.example import Example
from polyencoder.data.pool import CandidatePool, build_inline_pool
from polyencoder.encoding.graph import BATCH_TOKENS
from polyencoder.encoding.protocol import TextRanker
from polyencoder.encoding.scorer import score_lists
from polyencoder.encoding.tokens import find_distinct_candidates
from polyencoder.errors import InputError
from polyencoder.evaluation import metrics
from polyencoder.evaluation.metrics import Tally, merge_twins
from polyencoder.evaluation.names import HITS_AT
from polyencoder.progress import create_progress
from polyencoder.text.batches import cut_into_batches
from polyencoder.text.dialogue import check_contexts

TOGETHER = 32  # examples of a model that reads the tokens of both texts


def evaluate(
    ranker: TextRanker,
    examples: Sequence[Example],
    *,
    hits_at: Sequence[int] = HITS_AT,
    at_least: int = 2,
    graded: bool | None = None,
    progress: bool | None = False,
) -> Tally:
    """Evaluates a ranker on examples, each with its own candidates.

    Candidates with the same tokens count once, as in training. `graded` adds nDCG@10; None: if any example has several
    right candidates. `progress`: see `create_progress`.

    Raises:
        InputError: there is no example, or an example's label is not among its candidates, or they are too few.
    """
    check_examples(examples, at_least=at_least)
    keys = build_token_keys(ranker, examples)
    scored = create_progress(
        example_scores(ranker, examples), step="evaluating", unit="examples", total=len(examples), show=progress
    )
    return tally_scores(examples, scored, keys=keys, hits_at=hits_at, graded=graded)


def build_token_keys(ranker: TextRanker, examples: Sequence[Example]) -> Callable[[str], Hashable]:
    """A key of each candidate, which is equal for equal tokens."""
    _, rows = find_distinct_candidates(ranker.text, (text for example in examples for text in example.choices))
    return rows.__getitem__


def tally_scores(
    examples: Sequence[Example],
    scored: Iterable[tuple[int, Tensor]],
    *,
    keys: Callable[[str], Hashable] = str,
    hits_at: Sequence[int] = HITS_AT,
    graded: bool | None = None,
) -> Tally:
    """The metrics of examples, by `example_scores` of their candidates; those with equal `keys` count once."""
    tally = Tally()
    graded = any(example.labels is not None for example in examples) if graded is None else graded
    for i, scores in scored:
        row, pool = merge_ranking(examples[i], scores, keys=keys)
        tally.add(metrics.compute_metrics(row, pool, [len(examples[i].choices)], hits_at=hits_at, graded=graded))
    return tally


def merge_ranking(
    example: Example, scores: Tensor, *, keys: Callable[[str], Hashable] = str
) -> tuple[Tensor, CandidatePool]:
    """The scores [1, n] and the pool of an example's distinct candidates, from the scores of all of them."""
    columns: dict[str, int] = {}
    for column, text in enumerate(example.choices):
        columns.setdefault(text, column)
    row = scores[list(columns.values())].float().unsqueeze(0)
    pool = build_inline_pool([example.choices], [example.label], None if example.labels is None else [example.labels])
    return merge_twins(row, pool.to(row.device), [*map(keys, pool.texts)])


def recall_at_1(ranker: TextRanker, examples: Sequence[Example]) -> float:
    """R@1 (0 to 1) of a ranker on examples, which may have a single candidate; errors as in `evaluate`."""
    return evaluate(ranker, examples, at_least=1).report()["hits@1"]


def example_scores(ranker: TextRanker, examples: Sequence[Example]) -> Iterator[tuple[int, Tensor]]:
    """Yields (example's position, scores of its candidates), fastest first; equal tokens have equal scores."""
    if ranker.model.reads_pairs:
        yield from _score_pairs(ranker, examples)
        return
    ids, row_of = find_distinct_candidates(ranker.text, (text for example in examples for text in example.choices))
    vectors = ranker.encoder.encode_candidates(ids)
    lengths = [len(ranker.text.tokenize_context(example.turns)) for example in examples]
    for batch in cut_into_batches(lengths, max_tokens=BATCH_TOKENS):
        contexts = ranker.encode_contexts([examples[i].turns for i in batch])
        for row, i in enumerate(batch):
            candidates = vectors[[row_of[text] for text in examples[i].choices]]
            yield i, torch.from_numpy(ranker.encoder.score(contexts.select([row]), candidates)[0])


def _score_pairs(ranker: TextRanker, examples: Sequence[Example]) -> Iterator[tuple[int, Tensor]]:
    """Like `example_scores`, for a model that reads pairs; if it also has vectors, contexts share a batch."""
    at_once = TOGETHER if ranker.model.has_vectors else 1
    for start in range(0, len(examples), at_once):
        batch = examples[start : start + at_once]
        contexts = check_contexts([example.turns for example in batch])
        check_candidates("candidates", list(dict.fromkeys(text for example in batch for text in example.choices)))
        scores = score_lists(ranker, contexts, [example.choices for example in batch])
        yield from enumerate(map(torch.from_numpy, scores), start=start)


def check_examples(examples: Sequence[Example], *, at_least: int = 2) -> None:
    """Raises InputError unless each label is among its candidates, `at_least` distinct ones."""
    if not examples:
        raise InputError("no example to evaluate the ranker on")
    for number, example in enumerate(examples, start=1):
        where, candidates = example.where or f"example {number}", example.choices
        if (label := next((text for text in example.right if text not in candidates), None)) is not None:
            raise InputError(f"{where}: the label {label!r} is not among its {len(candidates)} candidates")
        if len(set(candidates)) < at_least:
            raise InputError(f"{where}: the label {example.label!r} is its only candidate: nothing to rank")
