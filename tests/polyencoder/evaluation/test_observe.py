"""Observations of examples with several right candidates, and the fit to them, written down by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from polyencoder.calibration import DEPTH
from polyencoder.calibration.fitting import fit
from polyencoder.calibration.observations import Observations
from polyencoder.data.example import Example
from polyencoder.evaluation.observe import observations_of, observe_search

TEXTS = [f"text {place}" for place in range(20)]
SEVERAL = Example.graded(["hi"], TEXTS, [0, 2, 0, 1] + [0] * 15 + [1])
ONE = Example(["hi"], TEXTS[2], TEXTS)
SCORES = -torch.arange(20.0)  # text 0 is the best


def test_every_right_candidate_is_right():
    seen = observations_of([SEVERAL, ONE], [(1, SCORES), (0, SCORES)])
    assert [row.nonzero().flatten().tolist() for row in seen.right] == [[1, 3, 19], [2]]
    assert (seen.scores.isfinite().sum(1).tolist(), seen.among.tolist()) == ([20, 20], [20, 20])
    wrong = seen.without_the_right()
    assert not wrong.right.any()
    assert wrong.among.tolist() == [17, 19]
    assert wrong.scores[0, :4].tolist() == [0, -2, -4, -5]
    assert wrong.scores.isfinite().sum(1).tolist() == [17, 19]


def test_of_a_search_too():
    hits = [SimpleNamespace(text=f" {text} ", score=float(score)) for text, score in zip(TEXTS, SCORES, strict=True)]

    class Search:
        reranker, among, top_k = None, 20, 11

        def __call__(self, contexts):
            return [hits for _ in contexts]

    found, expected = (
        observe_search(Search(), [SEVERAL, ONE]),
        observations_of([SEVERAL, ONE], [(0, SCORES), (1, SCORES)]),
    )
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.right, expected.right)
    assert (found.depth, expected.depth) == (DEPTH, None)


def test_the_fit_adds_the_probabilities_of_the_right_ones():
    """The fit is a maximum of the likelihood, and its first candidate is right whichever of them it is."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1000, 6, generator=generator, dtype=torch.float64)
    scores[:, :2] += 1
    best, order = scores.sort(1, descending=True)
    seen = Observations(best, order < 2, torch.full((1000,), 6))
    fitted = fit(seen, fingerprint="x")
    assert fitted.accuracy == float((order[:, 0] < 2).double().mean())

    def likelihood(slope: float, none: float) -> float:
        total = 0.0
        for asked in (seen, seen.without_the_right()):
            for row, right, among in zip(
                asked.scores.tolist(), asked.right.tolist(), asked.among.tolist(), strict=True
            ):
                weights = [math.exp(slope * score) for score in row]
                rest = among * math.exp(none)
                picked = sum(w for w, is_right in zip(weights, right, strict=True) if is_right) or rest
                total += math.log(picked / (sum(weights) + rest))
        return total

    slope, none = 1 / fitted.calibration.temperature, fitted.calibration.none
    for d in (-0.1, 0.1):
        assert likelihood(slope * (1 + d), none) < likelihood(slope, none)
        assert likelihood(slope, none + d) < likelihood(slope, none)
    alone = fit(Observations(best, order < 1, seen.among), fingerprint="x")  # as if the other one were wrong
    assert fitted.accuracy > alone.accuracy + 0.2
    assert fitted.after.error < 0.1
