"""Observations for calibration: a ranker's best scores on held-out examples, and which candidate is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyencoder.calibration.probability import DEPTH
from polyencoder.data.example import Example
from polyencoder.evaluation import example_scores
from polyencoder.ranker.protocol import Context, TextRanker
from polyencoder.scoring import check_scores

__all__ = ["Observations", "observations_of", "observe", "observe_search"]

_AT_ONCE = 32  # contexts per search


@dataclass(frozen=True)
class Observations:
    """The scores of the best candidates of each example."""

    scores: Tensor
    """float64 [examples, width], best first, padded with -inf; `DEPTH` + 1 of them are enough."""
    right: Tensor
    """int64 [examples], the column of the right candidate, -1 if it is not one of them."""
    among: Tensor
    """[examples], the number of ranked candidates."""

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Tensor) -> Observations:
        return Observations(self.scores[rows], self.right[rows], self.among[rows])

    def without_the_right(self) -> Observations:
        """Copies the observations without the right candidates."""
        there = self.right >= 0
        kept = torch.ones_like(self.scores, dtype=torch.bool)
        kept[there, self.right[there]] = False
        scores = self.scores.masked_fill(~kept, -torch.inf).sort(1, descending=True).values
        return Observations(scores, torch.full_like(self.right, -1), (self.among - there.to(self.among)).clamp(min=1))


def observe(ranker: TextRanker, examples: Sequence[Example]) -> Observations:
    """Ranks each example's own candidates, deduplicated."""
    return observations_of(examples, example_scores(ranker, examples))


def observations_of(examples: Sequence[Example], scored: Iterable[tuple[int, Tensor]]) -> Observations:
    """The observations of examples from the scores of their candidates, as `example_scores` yields them."""
    found: list[_Ranked] = [([], -1, 0)] * len(examples)
    for i, scores in scored:
        of = dict(zip(examples[i].choices, scores.tolist(), strict=True))
        found[i] = _ranked(of, examples[i].label, among=len(of))
    return _together(found)


class ContextSearch(Protocol):
    """A search for contexts; `polyencoder.index.searcher.Searcher` is one."""

    reranker: Any
    """The cross-encoder whose scores the hits have, or None."""

    @property
    def among(self) -> int:
        """The number of distinct candidates in the index."""
        ...

    def __call__(self, contexts: Sequence[Context]) -> Sequence[Sequence[Any]]:
        """The hits of each context: `text`, `score` and, with a reranker, `rerank_score`."""
        ...


def observe_search(searcher: ContextSearch, examples: Sequence[Example]) -> Observations:
    """Searches for each example's context; `DEPTH` + 1 hits at least, if the index has that many candidates.

    With a cross-encoder the scores are those of the hits that it read.
    """
    found: list[_Ranked] = []
    for i in range(0, len(examples), _AT_ONCE):
        some, among = examples[i : i + _AT_ONCE], searcher.among
        for hits, example in zip(searcher([one.turns for one in some]), some, strict=True):
            scores: dict[str, float] = {}
            for hit in hits:
                score = hit.score if searcher.reranker is None else hit.rerank_score
                if score is not None:
                    scores.setdefault(hit.text.strip(), score)
            found.append(_ranked(scores, example.label.strip(), among=among))
    return _together(found)


_Ranked = tuple[list[float], int, int]
"""The best scores in order, the place of the right one or -1, and the number of candidates that were ranked."""


def _ranked(scores: dict[str, float], label: str, *, among: int) -> _Ranked:
    check_scores(torch.tensor(list(scores.values())))
    order = sorted(scores, key=lambda text: -scores[text])[: DEPTH + 1]
    return [scores[text] for text in order], order.index(label) if label in order else -1, among


def _together(found: list[_Ranked]) -> Observations:
    scores = torch.full((len(found), DEPTH + 1), -torch.inf, dtype=torch.float64)
    for row, (best, _, _) in zip(scores, found, strict=True):
        row[: len(best)] = torch.tensor(best, dtype=torch.float64)
    return Observations(
        scores, torch.tensor([right for _, right, _ in found]), torch.tensor([among for _, _, among in found])
    )
