"""The worst errors of a ranker on examples: what was ranked above the right response."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from polyencoder.data.example import Example
from polyencoder.evaluation.examples import merge_ranking
from polyencoder.evaluation.metrics import find_first_right, pool_ranks


@dataclass(frozen=True)
class WorstError:
    """An example none of whose right responses is ranked first."""

    example: Example
    rank: int
    """The rank of `right`, from 1, as in `metrics.ranks`."""
    among: int
    """How many distinct candidates were ranked."""
    right: tuple[str, float]
    """The right response, the best ranked of several, with its score."""
    above: list[tuple[str, float]]
    """The candidates that were ranked above it, best first, with their scores; the first `most_above` of them."""


def find_worst_errors(
    examples: Sequence[Example],
    scores: Mapping[int, Tensor],
    *,
    keys: Callable[[str], Hashable] = str,
    count: int,
    most_above: int = 3,
) -> list[WorstError]:
    """The errors with the lowest ranks of the right response, worst first; of equal ranks those that lose by more.

    Args:
        examples: with candidates, which include the label.
        scores: of the candidates of each example, by its position: `dict(example_scores(ranker, examples))`.
        keys: candidates with equal keys count once.
        most_above: candidates ranked above the right one that an error keeps.
    """
    errors = []
    for number, row_scores in scores.items():
        row, pool = merge_ranking(examples[number], row_scores, keys=keys)
        rank = int(pool_ranks(row, pool))
        if rank == 1:
            continue
        texts, values, flags = pool.list_candidates(0), row[0].tolist(), (pool.numbers[0] > 0).tolist()
        right = texts[int(find_first_right(row, pool))]
        wrong = [(text, score) for text, score, is_right in zip(texts, values, flags, strict=True) if not is_right]
        wrong.sort(key=lambda pair: -math.inf if math.isnan(pair[1]) else -pair[1])
        label = right, values[texts.index(right)]
        errors.append(WorstError(examples[number], rank, len(texts), label, wrong[: min(most_above, rank - 1)]))
    errors.sort(key=lambda error: (-error.rank, error.right[1] - error.above[0][1]))
    return errors[:count]
