"""Fits the weight of vectors beside words in a hybrid search (`polyencoder.index.hybrid`) on examples.

It is the one of 101 weights from 0 (words alone) to 1 (vectors alone) with the largest mean nDCG@10. It is
measured out of fold, for each fifth of the examples with the weight of the others, beside the orders that need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from polyencoder.data.example import Example
from polyencoder.encoding.protocol import Context
from polyencoder.errors import InputError
from polyencoder.text import lines_of, same

DEPTH = 10
"""Of nDCG."""
WEIGHTS = np.arange(101) / 100
_FOLDS = 5
_FEWEST_EXAMPLES = 10
_AT_ONCE = 32  # contexts per search


class Ranked(NamedTuple):
    """The different texts that a hybrid search found for an example: arrays of their scores."""

    vectors: np.ndarray[Any, Any]
    """Scaled, as are those of the words (`polyencoder.index.hybrid.Scaled`)."""
    words: np.ndarray[Any, Any]
    ranks: np.ndarray[Any, Any]
    """The sums of their reciprocal ranks."""
    right: np.ndarray[Any, Any]
    """Whether they are right, bool."""
    relevant: int
    """The number of right texts, found or not."""


class WeightFit(NamedTuple):
    """A weight, and nDCG@10 of the examples in each order."""

    weight: float
    """Of the vectors, 0 to 1."""
    matters: bool
    """Whether any two weights differ in nDCG@10."""
    vectors: float
    words: float
    rrf: float
    weighted: float
    """Out of fold."""


def observe_hybrid(
    search: Callable[[Sequence[Context]], Sequence[Sequence[Any]]], examples: Sequence[Example]
) -> list[Ranked]:
    """Searches for each example's context. Candidates that repeat a turn are left out.

    Args:
        search: contexts -> the hits of each, as of `polyencoder.index.base.Index.scaled`.
    """
    found: list[Ranked] = []
    for first in range(0, len(examples), _AT_ONCE):
        some = examples[first : first + _AT_ONCE]
        for hits, example in zip(search([one.turns for one in some]), some, strict=True):
            said, right = lines_of(example.turns), {text.strip() for text in example.right}
            texts = {one.hit.text.strip(): one for one in reversed(hits) if same(one.hit.text) not in said}
            scores = [(one.vectors, one.words, one.hit.fused_score) for one in texts.values()]
            vectors, words, ranks = np.array(scores, dtype=np.float64).reshape(-1, 3).T
            are_right = np.array([text in right for text in texts], dtype=bool)
            found.append(Ranked(vectors, words, ranks, are_right, len(right)))
    return found


def fit_weight(examples: Sequence[Ranked]) -> WeightFit:
    """Fits the weight to at least ten examples that the model was not trained on.

    Of equally good weights it is the middle one of the most that are neighbours.

    Raises:
        InputError: there are too few examples, no word of theirs is in the index, or no right text was found.
    """
    if len(examples) < _FEWEST_EXAMPLES:
        raise InputError(f"{len(examples)} examples are too few to fit a weight; give at least {_FEWEST_EXAMPLES}")
    if not any(one.words.any() for one in examples):
        raise InputError(
            "the words of the contexts find nothing in the index, so there is nothing to weigh: are contexts and "
            "candidates in the same language?"
        )
    if not any(one.right.any() for one in examples):
        raise InputError(
            f"neither vectors nor words find the right answer of any of {len(examples):,} examples: are the responses "
            "in the index, word by word, and is it this model's data?"
        )
    values = np.stack(
        [_ndcg(np.outer(WEIGHTS, one.vectors) + np.outer(1 - WEIGHTS, one.words), one) for one in examples]
    )
    fold = np.arange(len(examples)) % _FOLDS
    weighted = [values[fold == i, _best(values[fold != i].mean(0))] for i in range(_FOLDS)]
    words, vectors = values.mean(0)[[0, -1]].tolist()
    return WeightFit(
        weight=float(WEIGHTS[_best(values.mean(0))]),
        matters=bool(np.ptp(values, axis=1).any()),
        vectors=vectors,
        words=words,
        rrf=float(np.mean([_ndcg(one.ranks[None], one) for one in examples])),
        weighted=float(np.concatenate(weighted).mean()),
    )


def _ndcg(scores: np.ndarray[Any, Any], example: Ranked) -> np.ndarray[Any, Any]:
    """nDCG@10 of each row of scores, [rows, n]; of equal scores those of wrong texts come first."""
    right = scores[:, example.right]
    before = (scores[:, None, :] > right[:, :, None]).sum(2) + _ties(scores, right, example)
    gains = np.where(before < DEPTH, 1 / np.log2(before + 2), 0.0).sum(1)
    return gains / (1 / np.log2(np.arange(min(example.relevant, DEPTH)) + 2)).sum()


def _ties(scores: np.ndarray[Any, Any], right: np.ndarray[Any, Any], example: Ranked) -> np.ndarray[Any, Any]:
    """For each right text, the number of equal ones that come before it: the wrong ones, and the right ones so far."""
    wrong = (scores[:, None, ~example.right] == right[:, :, None]).sum(2)
    return wrong + np.tril(right[:, :, None] == right[:, None, :], -1).sum(2)


def _best(means: np.ndarray[Any, Any]) -> int:
    """The place of the largest: the middle of its longest run."""
    best = means >= means.max() - 1e-12
    runs = ([place for place, _ in run] for is_best, run in groupby(enumerate(best), key=lambda one: one[1]) if is_best)
    longest = max(runs, key=len)
    return longest[len(longest) // 2]
