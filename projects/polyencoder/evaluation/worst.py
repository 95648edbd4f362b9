"""The worst errors of a ranker on examples: what was ranked above the right response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from polyencoder.data.example import Example
from polyencoder.evaluation.examples import of_scores

__all__ = ["WorstError", "worst_errors"]


@dataclass(frozen=True)
class WorstError:
    """An example whose right response is not ranked first."""

    example: Example
    rank: int
    """Of the right response, from 1, as in `polyencoder.evaluation.metrics.ranks`."""
    among: int
    """How many distinct candidates were ranked."""
    score: float
    """Of the right response."""
    above: list[tuple[str, float]]
    """The candidates that were ranked above it, best first, with their scores; the first `most_above` of them."""


def worst_errors(
    examples: Sequence[Example], scores: Mapping[int, Tensor], *, count: int = 20, most_above: int = 3
) -> list[WorstError]:
    """The errors with the lowest ranks of the right response, worst first; of equal ranks those that lose by more.

    Args:
        examples: with candidates, which include the label.
        scores: of the candidates of each example, by its place: `dict(example_scores(ranker, examples))`.
        count: of errors.
        most_above: candidates ranked above the right one that an error keeps.
    """
    found = []
    for place, own in scores.items():
        example = examples[place]
        rank = round(of_scores(own, example)["rank"])
        if rank == 1:
            continue
        of_text: dict[str, float] = {}
        for text, score in zip(example.choices, own.tolist(), strict=True):
            of_text.setdefault(text, score)
        others = {text: score for text, score in of_text.items() if text != example.label}
        above = sorted(others, key=lambda text: -others[text])[: rank - 1]  # a stable sort, as ranks are counted
        best = [(text, others[text]) for text in above]
        found.append((best[0][1], WorstError(example, rank, len(of_text), of_text[example.label], best[:most_above])))
    found.sort(key=lambda one: (-one[1].rank, one[1].score - one[0]))
    return [error for _, error in found[:count]]
