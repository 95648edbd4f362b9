"""Filters as conditions in SQL: SQLite selects the metadata that equal the values in JSON."""

from __future__ import annotations

import json
import sqlite3
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.filters import Kind
from polyencoder.index.folder.conditions import condition_of, exists, path_of
from tests.polyencoder.index.filtering import passes

NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, 1.0, -1, 2**53, 2**53 + 1, float(2**53), 0.5])
VALUES = st.none() | st.booleans() | st.text('a1\0"é', max_size=2) | NUMBERS
FIELDS = VALUES | st.lists(VALUES | st.lists(VALUES, max_size=1), max_size=3)


@given(st.lists(st.none() | st.dictionaries(st.sampled_from(["k", "a b"]), FIELDS), max_size=5), VALUES)
def test_the_fields_that_equal_a_value_or_contain_it(found, value):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE entries(number INTEGER PRIMARY KEY, metadata TEXT)")
    written = [(None if one is None else json.dumps(one, ensure_ascii=False),) for one in found]
    database.executemany("INSERT INTO entries(metadata) VALUES (?)", written)
    condition, values = condition_of({"k": value})
    rows = database.execute(f"SELECT number - 1 FROM entries WHERE {condition}", values)
    expected = [number for number, one in enumerate(found) if passes(one, {"k": value})]
    assert [number for (number,) in rows] == expected


def kind_of(value):
    kinds = ((bool, "boolean"), ((int, float), "number"), (str, "text"), (dict, "object"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), None)


@given(FIELDS | st.just({"k": "x"}) | st.just([{"k": 1}]), st.sets(st.sampled_from(get_args(Kind)), min_size=1))
def test_fields_with_values_of_a_kind(field, kinds):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE entries AS SELECT ? AS metadata", (json.dumps({"k": field}),))
    condition, values = exists("k", kinds)
    elements = field if isinstance(field, list) else [field]
    found = database.execute(f"SELECT 1 FROM entries WHERE {condition}", values).fetchone()
    assert (found is not None) == any(kind_of(one) in kinds for one in elements)


def test_no_filter_selects_all():
    assert condition_of(None) == ("TRUE", [])


def test_whether_a_field_with_a_quotation_mark_exists():
    """Which groups ask; a filter by it would need a path."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE entries AS SELECT ? AS metadata", (json.dumps({'a"b': 1}),))
    for key in ('a"b', 'a"c'):
        condition, values = exists(key)
        assert database.execute(f"SELECT 1 FROM entries WHERE {condition}", values).fetchall() == [(1,)] * (
            key == 'a"b'
        )


def test_a_name_without_a_path():
    with pytest.raises(InputError, match="a name with a quotation mark"):
        path_of('a"b')
