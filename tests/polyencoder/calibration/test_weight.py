"""The weight of vectors beside words: the best of the grid, by an nDCG@10 that scikit-learn computes, too."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from polyencoder.calibration.weight import Ranked, fit_weight, observe_hybrid
from polyencoder.data.example import Example
from polyencoder.errors import InputError


def example(rng: np.random.Generator, *, weight: float, noise: float = 0.3) -> Ranked:
    """One whose three right texts are the first by a sum with this weight, and some noise."""
    vectors, words = rng.random(30), rng.random(30)
    sums = weight * vectors + (1 - weight) * words + noise * rng.random(30)
    right = sums >= np.sort(sums)[-3]
    return Ranked(vectors, words, rng.random(30), right, 3)


def examples(n: int = 80, **settings) -> list[Ranked]:
    rng = np.random.default_rng(0)
    return [example(rng, **settings) for _ in range(n)]


def ndcg(some: list[Ranked], scores) -> float:
    return float(ndcg_score([one.right.astype(float) for one in some], [scores(one) for one in some], k=10))


@pytest.mark.parametrize("weight", [0.2, 0.7])
def test_the_best_weight_is_found(weight):
    some = examples(weight=weight)
    found = fit_weight(some)
    assert found.weight == pytest.approx(weight, abs=0.12)
    grid = [ndcg(some, lambda one, w=w: w * one.vectors + (1 - w) * one.words) for w in np.linspace(0, 1, 101)]
    assert grid[round(100 * found.weight)] == pytest.approx(max(grid))
    assert (found.words, found.vectors) == (pytest.approx(grid[0]), pytest.approx(grid[-1]))
    assert found.rrf == pytest.approx(ndcg(some, lambda one: one.ranks))
    assert max(grid[0], grid[-1]) < found.weighted <= max(grid)  # out of fold


def test_a_right_text_that_was_not_found_counts():
    some = [one._replace(relevant=4) for one in examples(weight=0.5, noise=0)]
    assert max(fit_weight(some)[2:]) < 1
    assert fit_weight([one._replace(relevant=3) for one in some]).weighted == pytest.approx(1)


def test_equal_scores_are_not_taken_for_right():
    same = Ranked(np.zeros(30), np.ones(30), np.zeros(30), np.arange(30) == 0, 1)
    found = fit_weight([same] * 10)
    assert (found.weight, found.matters) == (0.5, False)
    assert found[2:] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("some", "message"),
    [
        (examples(9, weight=0.5), "9 examples are too few to fit a weight; give at least 10"),
        ([one._replace(words=np.zeros(30)) for one in examples(weight=0.5)], "words of the contexts find nothing"),
        (
            [one._replace(right=np.zeros(30, bool)) for one in examples(weight=0.5)],
            "find the right answer of any of 80",
        ),
    ],
)
def test_examples_that_tell_nothing(some, message):
    with pytest.raises(InputError, match=message):
        fit_weight(some)


def test_searches_of_examples(make_ranker):
    ranker, texts = make_ranker("bi"), ["order 4711 was sent", "we open at nine", "a dog"]
    index = ranker.index([*texts, {"text": "a dog", "id": "twin"}], words=True)
    asked = Example(["a dog", "where is 4711 ?"], texts[0])
    (found,) = observe_hybrid(lambda some: index.scaled(ranker.encode_contexts(some), texts=some), [asked])
    assert len(found.right) == 2  # without the turn
    assert (found.right.sum(), found.relevant) == (1, 1)
    assert found.words[found.right] > 0
    assert found.words[~found.right] == 0
