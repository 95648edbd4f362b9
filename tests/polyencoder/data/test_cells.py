"""Cells of a record: lists written as text, texts joined by |, and contexts in several columns."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polyencoder.data.cells import find_earlier_columns, is_empty, join_earlier, parse_list, read_response, read_texts
from polyencoder.errors import InputError


@example(turns=[" "])
@example(turns=["it ' ' s", '" "'])
@given(turns=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_a_list_of_texts_is_read_as_json_and_python_write_it(turns):
    assert parse_list(json.dumps(turns), where="") == turns
    assert parse_list(f" {turns!r} ", where="") == turns


@pytest.mark.parametrize("value", ["[hello]", "hello", "[1, 'a']", "[" * 9000 + "]" * 9000, 3, None, ["a"]])
def test_what_is_no_list_of_texts_stays(value):
    assert parse_list(value, where="") == value


@pytest.mark.parametrize(
    "texts", [["hello", "there"], ["it's", "a 'b'", "a \"c\" 'd'"], [f"turn {n} ," for n in range(99)]]
)
def test_a_list_as_numpy_prints_it_is_an_error(texts):
    with pytest.raises(InputError, match=r"a\.csv, line 2.*NumPy"):
        parse_list(str(np.array(texts, dtype=object)), where="a.csv, line 2")


def test_turns_in_columns_are_joined_oldest_first():
    record = {"context": "now", "context/0": "before\nit", "context/1": None, "context/3": "behind a gap"}
    assert find_earlier_columns(record) == ["context/1", "context/0"]
    assert join_earlier(record) == ["before it", "now"]
    with pytest.raises(InputError, match="int"):
        join_earlier({**record, "context/0": 3})


def test_texts_of_a_cell():
    assert read_texts("a | b", "response") == ["a", "b"]
    assert read_texts(" ", "response") == read_texts(None, "response") == []
    assert read_response(" a ") == "a"
    assert [is_empty(value) for value in ([], "\n", None, 0)] == [True, True, True, False]
    for wrong in (3, [3], {"a": 1}):
        with pytest.raises(TypeError):
            read_texts(wrong, "response")
    for wrong in ("", None, ["a"]):
        with pytest.raises(TypeError):
            read_response(wrong)
