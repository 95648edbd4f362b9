"""Numbers as papers print them, and means of seeds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduce.values import Value, compute_mean, read_value


@pytest.mark.parametrize(
    ("text", "mean", "deviation", "printed"),
    [
        ("83.3 ± 0.2", 83.3, 0.2, "83.3 ± 0.2"),
        ("88.1 ± 0.0", 88.1, 0.0, "88.1 ± 0.0"),
        (71.0, 71.0, None, "71.0"),
        ("131,438", 131438, None, "131,438"),
        (6634, 6634, None, "6,634"),
        ("≈ 2,200,000", 2.2e6, None, "≈ 2,200,000"),
    ],
)
def test_what_a_paper_prints_is_read_and_shown_again(text, mean, deviation, printed):
    value = read_value(text)
    assert (value.mean, value.deviation) == (mean, deviation)
    assert str(value) == printed


def test_of_what_was_not_measured_three_digits_are_shown():
    assert str(Value(32_021_964.1, digits=0, inferred=True)) == "≈ 32,000,000"
    assert str(Value(32_021.9, digits=0)) == "32,022"


@pytest.mark.parametrize("text", ["", "83.3 +- 0.2", "83.3 ±", "-", "about 3"])
def test_what_is_no_number_is_an_error_that_shows_it(text):
    with pytest.raises(ValueError, match="not a number"):
        read_value(text)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_mean_and_deviation_are_those_of_a_sample(numbers):
    value = compute_mean(numbers, digits=2)
    mean = math.fsum(numbers) / len(numbers)
    assert value.mean == pytest.approx(mean, abs=1e-9)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    assert value.deviation == pytest.approx(math.sqrt(variance), abs=1e-6)
    assert value.count == len(numbers)


def test_one_seed_has_no_deviation_and_none_has_no_mean():
    assert compute_mean([71.25], digits=1).deviation is None
    for numbers in ([], [math.nan], [1.0, math.inf]):
        with pytest.raises(ValueError, match="no mean"):
            compute_mean(numbers, digits=1)


def test_a_rounded_number_may_be_half_a_digit_off():
    paper = read_value("83.3 ± 0.2")
    assert Value(83.84).is_near(paper, tolerance=0.5)
    assert not Value(83.9).is_near(paper, tolerance=0.5)
