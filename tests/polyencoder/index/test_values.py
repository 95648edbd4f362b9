"""Texts of values sort as the values."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from polyencoder.index.values import EMPTY, NULL, OBJECT, exceeds, format_value_text, list_field_values

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
    assert (format_value_text(first) < format_value_text(second)) == (first < second)
    assert (format_value_text(first) == format_value_text(second)) == (first == second)


@given(TEXTS, TEXTS)
@example("x" * 64, "x" * 65)
@example("a\0", "a")
@example("a\0", "a\1")
def test_texts(first, second):
    assert (format_value_text(first) < format_value_text(second)) == (first < second)
    assert "\0" not in format_value_text(first)


def test_what_is_too_long_equals_itself_alone():
    long = ["x" * 64 + "y", "x" * 64 + "z", 9**999, 9**999 + 1, -(9**999)]
    assert len({format_value_text(value) for value in long}) == len(long)
    assert all(exceeds(value) and len(format_value_text(value)) < 120 for value in long)
    assert not any(exceeds(value) for value in ("x" * 64, 2**256 - 1, 10**40, 0, 5e-324))
    assert format_value_text(9**999) > format_value_text(2**200) > format_value_text(-(9**999))


def test_fields():
    assert list_field_values([True, 1, 1.0, "1", None, [1], {"a": 1}]) == {"b1", format_value_text(1), "t1", OBJECT}
    assert (list_field_values(None), list_field_values([]), list_field_values([None, [1]])) == (
        {NULL},
        {EMPTY},
        {EMPTY},
    )
