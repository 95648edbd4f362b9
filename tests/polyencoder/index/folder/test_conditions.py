"""Filters as conditions in SQL, on the texts of the values in the table `fields`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import get_args

import pytest

from polyencoder.index.folder.conditions import build_exists, to_sql
from polyencoder.index.folder.schema import create_tables
from polyencoder.index.values import Kind, list_field_values


def kind_of(value):
    kinds = ((bool, "boolean"), ((int, float), "number"), (str, "text"), (dict, "object"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), None)


@pytest.mark.parametrize("field", [True, 1, 1.5, "1", None, {"a": 1}, [], [1, "1"], [{}], [[1]], [None, False]])
def test_fields_with_values_of_a_kind(field):
    elements = field if isinstance(field, list) else [field]
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(connection)
        connection.executemany("INSERT INTO fields VALUES ('k', ?, 0)", [(text,) for text in list_field_values(field)])
        for kinds in ([], *([kind] for kind in get_args(Kind)), ["text", "number"]):
            condition, values = build_exists("k", kinds)
            row = connection.execute(f"SELECT 1 FROM fields WHERE {condition}", values).fetchone()
            assert (row is not None) == (not kinds or any(kind_of(element) in kinds for element in elements))


def test_no_filter_selects_all():
    assert to_sql(None) == ("TRUE", [])
