"""Filters: a field's values as a list, or an error that names the field."""

from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import canonical
from polyencoder.index.filters import check_fields, checked_filter


def test_one_value_is_a_list_of_one():
    assert checked_filter({"a": 1, "b": [None, "x"], "c": ()}) == {"a": [1], "b": [None, "x"], "c": []}
    assert checked_filter(None) == {}


@given(
    st.one_of(
        st.sampled_from(
            [
                np.int64(3),
                np.float32(0.1),
                np.bool_(True),
                np.str_("x"),
                Decimal("1.50"),
                UUID(int=5),
                np.datetime64("2026-11-27"),
            ]
        ),
        st.dates(),
        st.datetimes(),
        st.times(),
        st.integers(),
    )
)
def test_values_are_those_that_metadata_store(value):
    stored = json.loads(canonical({"a": value}))["a"]
    for options in (value, [value], (value,), {value}):
        (found,) = checked_filter({"a": options})["a"]
        assert (json.loads(json.dumps(found)), type(found) is bool) == (stored, type(stored) is bool)
    assert checked_filter({"a": np.array([1, 2])}) == {"a": [1, 2]}


@pytest.mark.parametrize("filter", ["a", {1: 2}, {"a": float("nan")}, {"a": [{}]}, {"a": "\ud800"}, {"\ud800": 1}])
def test_what_is_no_filter(filter):
    with pytest.raises(InputError, match=r"filter is 'a'; it must be a dict|cannot filter by") as caught:
        checked_filter(filter)
    assert caught.value.argument == "filter"


def fields_of(**kinds):
    """`Index.has_field` of candidates with these kinds of values in their fields."""
    return lambda key, wanted: key in kinds and (not wanted or any(kind in kinds[key] for kind in wanted))


@pytest.mark.parametrize(
    ("filter", "error"),
    [
        ({"a": 1, "b": "x", "c": [None, "x"], "d": None}, None),
        ({"a": ["3", 3]}, None),  # as `--filter a=3` means either
        ({"a": []}, None),
        ({"g": "x"}, None),  # null or empty lists alone, which have no kind
        ({"e": 1}, "cannot filter by 'e': no candidate of the index has this metadata field"),
        ({"a": "3"}, "cannot filter by 'a': '3' is a text, and in this .* have numbers alone, which never equal one"),
        ({"b": [3, 4]}, "cannot filter by 'b': 3 is a number, and in this .* have texts and booleans alone"),
        ({"a": True}, "True is a boolean, .* numbers alone"),
        ({"f": "x"}, "'x' is a text, .* objects alone"),
    ],
)
def test_fields_must_have_values_of_a_kind_that_is_asked_for(filter, error):
    has_field = fields_of(a=["number"], b=["text", "boolean"], c=["number"], f=["object"], g=[])
    if error is None:
        return check_fields(filter, has_field=has_field)
    with pytest.raises(InputError, match=error) as caught:
        check_fields(filter, has_field=has_field)
    assert caught.value.argument == "filter"
