"""What a ranker says of examples that it has not learnt from: the scores of the best candidates, and which is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyencoder.calibration.probability import DEPTH
from polyencoder.data.example import Example
from polyencoder.evaluation import example_scores
from polyencoder.ranker.protocol import Context, TextRanker
from polyencoder.scoring import check_scores

__all__ = ["Observations", "observe", "observe_search"]

_AT_ONCE = 32  # contexts that are searched for together


@dataclass(frozen=True)
class Observations:
    """What a ranker said of examples: the scores of the best candidates of each.

    scores: float64 [examples, width], best first, -inf where there are fewer; `DEPTH` + 1 of them are enough.
    right: int64 [examples], the column of the right candidate, -1 where it is not among them.
    among: [examples], of how many candidates these are the best.
    """

    scores: Tensor
    right: Tensor
    among: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Tensor) -> Observations:
        return Observations(self.scores[rows], self.right[rows], self.among[rows])

    def without_the_right(self) -> Observations:
        """The same, had the right candidate not been there."""
        there = self.right >= 0
        kept = torch.ones_like(self.scores, dtype=torch.bool)
        kept[there, self.right[there]] = False
        scores = self.scores.masked_fill(~kept, -torch.inf).sort(1, descending=True).values
        return Observations(scores, torch.full_like(self.right, -1), (self.among - there.to(self.among)).clamp(min=1))


def observe(ranker: TextRanker, examples: Sequence[Example]) -> Observations:
    """The ranking of each example's own candidates; one that it has twice is one."""
    found: list[tuple[list[float], int, int]] = [([], -1, 0)] * len(examples)
    for i, scores in example_scores(ranker, examples):
        label, candidates = examples[i].label, examples[i].choices
        of = dict(zip(candidates, scores.tolist(), strict=True))
        found[i] = _seen(list(of), list(of.values()), label, among=len(of))
    return _together(found)


class ContextSearch(Protocol):
    """A search for contexts; `polyencoder.index.searcher.Searcher` is one."""

    reranker: Any
    """The cross-encoder whose scores the hits have, or None."""

    @property
    def among(self) -> int:
        """How many different candidates are searched."""
        ...

    def __call__(self, contexts: Sequence[Context]) -> Sequence[Sequence[Any]]:
        """The hits of each context: `text`, `score` and, where there is a reranker, `rerank_score`."""
        ...


def observe_search(searcher: ContextSearch, examples: Sequence[Example]) -> Observations:
    """What a search finds for each context; of `DEPTH` + 1 hits at least, if the index has as many.

    With a cross-encoder the scores are those of what it has read.
    """
    found = []
    for i in range(0, len(examples), _AT_ONCE):
        some, among = examples[i : i + _AT_ONCE], searcher.among
        for hits, example in zip(searcher([one.turns for one in some]), some, strict=True):
            scores: dict[str, float] = {}
            for hit in hits:
                score = hit.score if searcher.reranker is None else hit.rerank_score
                if score is not None:
                    scores.setdefault(hit.text.strip(), score)
            found.append(_seen(list(scores), list(scores.values()), example.label.strip(), among=among))
    return _together(found)


def _seen(texts: list[str], scores: list[float], label: str, *, among: int) -> tuple[list[float], int, int]:
    """The best scores in order, the place of the label's, and of how many candidates they are the best."""
    check_scores(torch.tensor(scores))
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[: DEPTH + 1]
    right = next((place for place, i in enumerate(order) if texts[i] == label), -1)
    return [scores[i] for i in order], right, among


def _together(found: list[tuple[list[float], int, int]]) -> Observations:
    scores = torch.full((len(found), DEPTH + 1), -torch.inf, dtype=torch.float64)
    for row, (best, _, _) in zip(scores, found, strict=True):
        row[: len(best)] = torch.tensor(best, dtype=torch.float64)
    return Observations(
        scores, torch.tensor([right for _, right, _ in found]), torch.tensor([among for _, _, among in found])
    )
