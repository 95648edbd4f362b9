"""The worst errors of a ranker on examples: what was ranked above the right response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from polyencoder.data.example import Example


@dataclass(frozen=True)
class WorstError:
    """An example none of whose right responses is ranked first."""

    example: Example
    rank: int
    """Of `right`, from 1, as in `polyencoder.evaluation.metrics.ranks`."""
    among: int
    """How many distinct candidates were ranked."""
    right: tuple[str, float]
    """The right response, of several the best ranked one, with its score."""
    above: list[tuple[str, float]]
    """The candidates that were ranked above it, best first, with their scores; the first `most_above` of them."""


def worst_errors(
    examples: Sequence[Example], scores: Mapping[int, Tensor], *, count: int, most_above: int = 3
) -> list[WorstError]:
    """The errors with the lowest ranks of the right response, worst first; of equal ranks those that lose by more.

    Args:
        examples: with candidates, which include the label.
        scores: of the candidates of each example, by its place: `dict(example_scores(ranker, examples))`.
        most_above: candidates ranked above the right one that an error keeps.
    """
    found = []
    for place, own in scores.items():
        example = examples[place]
        of_text: dict[str, float] = {}
        for text, score in zip(example.choices, own.tolist(), strict=True):
            of_text.setdefault(text, score)
        order = sorted(of_text, key=lambda text: -of_text[text])
        rank = next(place for place, text in enumerate(order, start=1) if text in example.right)
        if rank > 1:
            ranked = [(text, of_text[text]) for text in order[:rank]]
            found.append(WorstError(example, rank, len(order), ranked[-1], ranked[: min(most_above, rank - 1)]))
    found.sort(key=lambda one: (-one.rank, one.right[1] - one.above[0][1]))
    return found[:count]
