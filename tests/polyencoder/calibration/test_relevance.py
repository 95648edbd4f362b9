"""Scores as relevance: in 0 to 1, in the order of the scores, and the probability where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.calibration import Calibration
from polyencoder.calibration.relevance import ranked

CALIBRATION = Calibration(temperature=3.0, none=-1.0, fingerprint="")
SCORES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12)


@given(st.floats(allow_nan=False))
def test_a_sigmoid_of_any_score(score):
    ((_, value),) = ranked(["a"], np.array([score]), None)
    ((_, opposite),) = ranked(["a"], np.array([-score]), None)
    assert 0 <= value <= 1
    assert value == pytest.approx(1 - opposite, abs=1e-12)
    if abs(score) < 500:
        assert value == pytest.approx(1 / (1 + math.exp(-score)))


@given(SCORES, st.none() | st.integers(1, 15), st.sampled_from([None, CALIBRATION]))
def test_the_order_is_that_of_the_scores_and_of_equal_ones_the_first_comes_first(scores, top_n, calibration):
    texts = [str(n) for n in range(len(scores))]
    found = ranked(texts, np.array(scores, dtype=np.float32), calibration, top_n=top_n)
    places = sorted(range(len(scores)), key=lambda place: -scores[place])
    assert [place for place, _ in found] == places[:top_n]
    values = [value for _, value in found]
    assert all(0 <= value <= 1 for value in values)
    assert values == sorted(values, reverse=True)


def test_probabilities_are_among_the_different_texts(make_ranker):
    ranker = make_ranker("bi")
    ranker.calibration = CALIBRATION
    texts = ["hello", "i ski .", "hello", "two dogs ."]
    expected = [(one.index, pytest.approx(one.probability)) for one in ranker.rank("hi", texts)]
    assert ranked(texts, ranker.score(["hi"], texts)[0], CALIBRATION) == expected
