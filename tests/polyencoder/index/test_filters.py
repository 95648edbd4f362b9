"""Filters: tests of fields, or an error that names the field."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import format_metadata
from polyencoder.index.filters import check_fields, parse_filter, passes
from tests.polyencoder.index.filtering import passes as oracle
from tests.polyencoder.index.filtering import random_filter, random_metadata


def list_tests(filter):
    return [*parse_filter(filter).iter_tests()]


def test_each_operator_is_a_test():
    assert list_tests({"a": 1, "b": [None, "x"], "c": ()}) == [
        ("a", "$in", (1,)),
        ("b", "$in", (None, "x")),
        ("c", "$in", ()),
    ]
    assert list_tests({"a": {"$gte": 2020, "$ne": "x"}, "$or": [{"b": {"$exists": True}}, {"b": {"$nin": [1]}}]}) == [
        ("a", "$gte", (2020,)),
        ("a", "$nin", ("x",)),
        ("b", "$exists", (True,)),
        ("b", "$nin", (1,)),
    ]
    assert list_tests(None) == list_tests({}) == []


@pytest.mark.slow
def test_random_filters_evaluated_by_python():
    metadata = [random_metadata(random.Random(seed)) for seed in range(40)]
    for seed in range(1500):
        filter = random_filter(random.Random(seed))
        group = parse_filter(filter)
        assert [passes(fields, group) for fields in metadata] == [oracle(fields, filter) for fields in metadata], filter


@given(
    st.one_of(
        st.sampled_from([np.int64(3), np.float32(0.1), np.bool_(True), np.str_("x"), Decimal("1.50"), UUID(int=5)]),
        st.dates(),
        st.datetimes(),
        st.times(),
        st.integers(),
    )
)
def test_values_are_those_that_metadata_store(value):
    stored = json.loads(format_metadata({"a": value}))["a"]
    for options in (value, [value], (value,), {value}):
        ((_, _, (parsed,)),) = list_tests({"a": options})
        assert (json.loads(json.dumps(parsed)), type(parsed) is bool) == (stored, type(stored) is bool)
    assert list_tests({"a": np.array([1, 2])}) == [("a", "$in", (1, 2))]
    assert list_tests({"a": {"$gt": np.datetime64("2026-11-27")}}) == [("a", "$gt", ("2026-11-27",))]


@pytest.mark.parametrize(
    ("filter", "named"),
    [
        ("a", "filter is 'a'; it must be a dict"),
        ({1: 2}, "by 1"),
        ({"a": float("nan")}, "'a': nan"),
        ({"a": [{}]}, "'a': {}"),
        ({"a": b"x"}, "'a': b'x'"),
        ({"a": "\ud800"}, "'a'"),
        ({"\ud800": 1}, "ud800"),
        ({"\ud800": {"$exists": True}}, "ud800"),
        ({"a": {"b": 1}}, r"\$gte"),
        ({"a": {}}, r"\$gte"),
        ({"a": {"$gt": 1, "lt": 2}}, r"\$gte"),
        ({"a": {"$gt": True}}, r"\$gt"),
        ({"a": {"$lt": None}}, r"\$lt"),
        ({"a": {"$lt": [1]}}, r"'a': \[1\]"),
        ({"a": {"$ne": [1]}}, r"'a': \[1\]"),
        ({"a": {"$in": 1}}, r"\$in has a list"),
        ({"a": {"$nin": "x"}}, r"\$nin has a list"),
        ({"a": {"$exists": 1}}, r"\$exists"),
        ({"a": {"$gte": "x" * 65}}, "64"),
        ({"a": {"$gte": 2**257 + 1}}, "256"),
        ({"$or": []}, r"\$or"),
        ({"$or": [{}]}, r"\$or"),
        ({"$and": {"a": 1}}, r"\$and"),
        ({"$and": ["a"]}, "it must be a dict"),
        ({"a": {"$and": [1]}}, r"\$gte"),
        ({str(n): n for n in range(101)}, "more than 100 fields"),
        ({"$or": [{"a": {"$gt": 1, "$lt": 2}}] * 51}, "more than 100 fields and operators"),
        ({"$or": [{"$or": [{"a": 1}] * 101}, "not read"]}, "more than 100 fields"),  # a million would take seconds
    ],
)
def test_what_is_no_filter(filter, named):
    with pytest.raises(InputError, match=named) as caught:
        parse_filter(filter)
    assert caught.value.argument == "filter"


def test_nested_too_deeply():
    filter = {"a": 1}
    for _ in range(9):
        filter = {"$or": [filter]}
    assert list_tests(filter) == [("a", "$in", (1,))]
    with pytest.raises(InputError, match="levels"):
        parse_filter({"$and": [filter]})


def fields_of(**kinds):
    """`Index.has_field` of candidates with these kinds of values in their fields."""
    return lambda key, required: key in kinds and (not required or any(kind in kinds[key] for kind in required))


@pytest.mark.parametrize(
    ("filter", "error"),
    [
        ({"a": 1, "b": "x", "c": [None, "x"], "d": None}, None),
        ({"a": ["3", 3]}, None),  # as `--filter a=3` means either
        ({"a": []}, None),
        ({"e": {"$exists": True}}, None),
        ({"a": {"$gt": 1}, "$or": [{"b": "x"}, {"b": {"$ne": True}}]}, None),
        ({"$or": [{"a": 1}, {"e": 1}]}, "cannot filter by 'e': no candidate of the index has this metadata field"),
        ({"e": {"$ne": 1}}, "cannot filter by 'e'"),
        ({"b": {"$gte": 2020}}, "cannot filter by 'b': 2020 is a number, .* texts and booleans alone"),
        ({"g": "x"}, None),  # null or empty lists alone, which have no kind
        ({"e": 1}, "cannot filter by 'e': no candidate of the index has this metadata field"),
        ({"a": "3"}, "cannot filter by 'a': '3' is a text, and in this .* have numbers alone"),
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
