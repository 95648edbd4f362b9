"""Texts of values sort as the values."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from polyencoder.index.values import EMPTY, NULL, OBJECT, exceeds, field_values, value_text

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0\1\2"))


@given(NUMBERS, NUMBERS)
@example(2**53, 2**53 + 1)
@example(2.0**53, 2**53)
@example(5e-324, -5e-324)
@example(10**23, 1e23)
@example(-(16**70) - 1, -(16**70))
@example(16**70 + 1, 16**70)
def test_numbers(first, second):
    assert (value_text(first) < value_text(second)) == (first < second)
    assert (value_text(first) == value_text(second)) == (first == second)


@given(TEXTS, TEXTS)
@example("x" * 64, "x" * 65)
@example("a\0", "a")
@example("a\0", "a\1")
def test_texts(first, second):
    assert (value_text(first) < value_text(second)) == (first < second)
    assert "\0" not in value_text(first)


def test_what_is_too_long_equals_itself_alone():
    long = ["x" * 64 + "y", "x" * 64 + "z", 9**999, 9**999 + 1, -(9**999)]
    assert len({value_text(value) for value in long}) == len(long)
    assert all(exceeds(value) and len(value_text(value)) < 120 for value in long)
    assert not any(exceeds(value) for value in ("x" * 64, 2**256 - 1, 10**40, 0, 5e-324))
    assert value_text(9**999) > value_text(2**200) > value_text(-(9**999))


def test_fields():
    assert field_values([True, 1, 1.0, "1", None, [1], {"a": 1}]) == {"b1", value_text(1), "t1", OBJECT}
    assert (field_values(None), field_values([]), field_values([None, [1]])) == ({NULL}, {EMPTY}, {EMPTY})
