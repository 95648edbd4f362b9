"""Thresholds with a proven risk, on answers whose true risk is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from polyencoder.calibration.risk import (
    Answers,
    bound_risk,
    compute_p_value,
    count_fewest_answers,
    find_promised_risk,
    find_smallest_risk,
    prove,
)
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


def draw(n: int, rng: np.random.Generator, *, slope: float = 2.5) -> Answers:
    """Answers whose probability orders them well and is far from true."""
    x = rng.normal(size=n)
    return Answers(1 / (1 + np.exp(-1.5 * x)), rng.random(n) < 1 / (1 + np.exp(-slope * x - 1)))


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_the_bound_is_that_of_clopper_and_pearson(counts, confidence):
    wrong, answers = counts
    interval = binomtest(wrong, answers).proportion_ci(confidence_level=2 * confidence - 1, method="exact")
    assert float(bound_risk(wrong, answers, confidence=confidence)) == pytest.approx(interval.high, abs=1e-9)


def test_the_chance_of_wrong_answers_is_exact():
    for wrong in range(6):
        at_least = sum(math.comb(5, k) * 0.3**k * 0.7 ** (5 - k) for k in range(wrong, 6))
        assert compute_p_value(wrong, 5, risk=0.3) == pytest.approx(at_least)


@given(st.floats(0.005, 0.5), st.floats(0.5, 0.999))
def test_the_fewest_answers_prove_a_risk_and_one_less_does_not(risk, confidence):
    fewest = count_fewest_answers(risk, confidence=confidence)
    assert bound_risk(0, fewest, confidence=confidence) <= risk + 1e-9
    assert fewest == 1 or bound_risk(0, fewest - 1, confidence=confidence) > risk - 1e-9


@mostly_long(("n", "risk"), [(300, 0.1), (1000, 0.05), (1000, 0.2)], quick=2)
def test_promises_are_held_as_often_as_they_say(n, risk):
    rng, broken, promised = np.random.default_rng(0), 0, 0
    for _ in range(150):
        promise = prove(draw(n // 2, rng), draw(n // 2, rng), risk=risk, confidence=0.9)
        if promise is not None:
            new = draw(20_000, rng)
            answered = new.probabilities >= promise.threshold
            broken += (~new.right[answered]).mean() > risk
            promised += 1
            assert promise.answered == pytest.approx(answered.mean(), abs=0.2)
    assert promised > 15
    assert broken <= 0.1 * 150 + 3 * (0.1 * 0.9 * 150) ** 0.5


def test_more_examples_answer_more_and_right_answers_all():
    rng = np.random.default_rng(1)
    small, large = (prove(draw(n, rng), draw(n, rng), risk=0.1) for n in (400, 20_000))
    assert small is not None
    assert large is not None
    assert small.answered < large.answered
    right = Answers(rng.random(100), np.ones(100, dtype=bool))
    promise = prove(right, right, risk=0.05)
    assert promise is not None
    assert promise.answered == 1


def test_no_threshold_holds_for_answers_that_are_wrong():
    rng = np.random.default_rng(2)
    wrong = Answers(rng.random(400), rng.random(400) < 0.5)
    assert prove(wrong, wrong, risk=0.05) is None


def test_the_smallest_risk_is_the_smallest_that_is_promised():
    rng = np.random.default_rng(3)
    fitted, tested = draw(300, rng), draw(300, rng)
    smallest = find_smallest_risk(fitted, tested)
    assert prove(fitted, tested, risk=smallest) is not None
    assert prove(fitted, tested, risk=smallest - 1e-9) is None


def test_the_smallest_risk_of_an_answer():
    rng = np.random.default_rng(4)
    fitted, tested = draw(2000, rng), draw(2000, rng)
    loose, strict = (prove(fitted, tested, risk=risk) for risk in (0.2, 0.1))
    assert find_promised_risk([loose, strict], 1.0) == 0.1
    assert find_promised_risk([loose, strict], loose.threshold) == 0.2
    assert find_promised_risk([loose, strict], loose.threshold - 1e-9) is None
