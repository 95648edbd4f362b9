"""Observes a ranker's scores on held-out examples, for calibration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyencoder.calibration.observations import Observations
from polyencoder.calibration.probability import DEPTH
from polyencoder.data.example import Example
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import InputError
from polyencoder.evaluation.examples import example_scores
from polyencoder.progress import progress_bar
from polyencoder.scoring import check_scores

if TYPE_CHECKING:
    from polyencoder.index.searcher import Searcher

_AT_ONCE = 32  # contexts per search


def observe(ranker: TextRanker, examples: Sequence[Example], *, progress: bool | None = False) -> Observations:
    """Ranks each example's own candidates, deduplicated. `progress`: see `progress_bar`."""
    scored = example_scores(ranker, examples)
    return observations_of(
        examples, progress_bar(scored, step="ranking", unit="examples", total=len(examples), show=progress)
    )


def observations_of(examples: Sequence[Example], scored: Iterable[tuple[int, Tensor]]) -> Observations:
    """The observations of examples from the scores of their candidates, as `example_scores` yields them."""
    found: list[_Ranked] = [([], [], 0)] * len(examples)
    for i, scores in scored:
        of = dict(zip(examples[i].choices, scores.tolist(), strict=True))
        found[i] = _ranked(of, examples[i].right, among=len(of))
    return _together(found)


def observe_search(searcher: Searcher, examples: Sequence[Example], *, progress: bool | None = False) -> Observations:
    """Searches for each example's context.

    The search finds `DEPTH` hits and one for each right candidate, if the index has that many. With a cross-encoder the
    scores are those of the hits that it read. `progress`: see `progress_bar`.
    """
    if searcher.top_k == 0:
        raise InputError("the index is empty")
    found: list[_Ranked] = []
    with progress_bar(step="searching", unit="contexts", total=len(examples), show=progress) as shown:
        for i in range(0, len(examples), _AT_ONCE):
            some, among = examples[i : i + _AT_ONCE], searcher.among
            for hits, example in zip(searcher([one.turns for one in some]), some, strict=True):
                scores: dict[str, float] = {}
                for hit in hits:
                    score = hit.score if searcher.reranker is None else hit.rerank_score
                    if score is not None:
                        scores.setdefault(hit.text.strip(), score)
                found.append(_ranked(scores, [text.strip() for text in example.right], among=among))
            shown.update(len(some))
    return _together(found, depth=DEPTH)


_Ranked = tuple[list[float], list[bool], int]
"""The scores in order, which of them are right, and the number of candidates that were ranked."""


def _ranked(scores: dict[str, float], right: Collection[str], *, among: int) -> _Ranked:
    check_scores(torch.tensor(list(scores.values())))
    order = sorted(scores, key=lambda text: (-scores[text], text in right))  # ties count as wrong
    return [scores[text] for text in order], [text in right for text in order], among


def _together(found: list[_Ranked], *, depth: int | None = None) -> Observations:
    width = max((len(best) for best, _, _ in found), default=0)
    scores = torch.full((len(found), max(width, 1)), -torch.inf, dtype=torch.float64)
    right = torch.zeros_like(scores, dtype=torch.bool)
    for row, (best, are_right, _) in enumerate(found):
        scores[row, : len(best)] = torch.tensor(best, dtype=torch.float64)
        right[row, : len(best)] = torch.tensor(are_right, dtype=torch.bool)
    return Observations(scores, right, torch.tensor([among for _, _, among in found]), depth)
