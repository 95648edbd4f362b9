"""Filters: a field's values as a list, or an error that names the field."""

from __future__ import annotations

import pytest

from polyencoder.errors import InputError
from polyencoder.index.filters import checked_filter


def test_one_value_is_a_list_of_one():
    assert checked_filter({"a": 1, "b": [None, "x"], "c": ()}) == {"a": [1], "b": [None, "x"], "c": []}
    assert checked_filter(None) == {}


@pytest.mark.parametrize("filter", ["a", {1: 2}, {"a": float("nan")}, {"a": [{}]}, {"a": "\ud800"}, {"\ud800": 1}])
def test_what_is_no_filter(filter):
    with pytest.raises(InputError, match=r"filter is 'a'; it must be a dict|cannot filter by") as caught:
        checked_filter(filter)
    assert caught.value.argument == "filter"
