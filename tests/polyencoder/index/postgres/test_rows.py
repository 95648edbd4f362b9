"""Metadata and filters in jsonb, beside those of an index folder."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate, canonical
from polyencoder.index.filters import Kind
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.rows import condition, written
from tests.polyencoder.index.filtering import passes
from tests.polyencoder.index.postgres.tables import drawn, names, stored

VALUES = [None, True, False, 0, 1, 1.0, 1.5, -1, 10**20, 1e20, 1e23, 10**23, "1", "true", "", "ü'\"\\", [1], {"a": 1}]
VALUES += [["1", 1.5, None], [[1], {"a": 2}], [True, 10**23]]
FILTERS = [value for value in VALUES if not isinstance(value, (list, dict))]


def test_filters_compare_as_json_does(where):
    metadata = [{"a": value} for value in VALUES] + [{}, {"b": 1}]
    index = stored(where, drawn(len(metadata), 1, 4)[0], metadata)
    contexts = drawn(1, 1, 4, contexts=1)[1]
    for options in [*([one] for one in FILTERS), [], FILTERS, ["x\0", 1]]:
        right = {str(i) for i, one in enumerate(metadata) if passes(one, {"a": options})}
        hits = index.search(contexts, filter={"a": options}, top_k=100)[0]
        assert {hit.id for hit in hits} == right
        assert index.count({"a": options}) == len(right)
    assert index.count({"a": 1, "b": None}) == 3  # 1, 1.0 and [1]
    assert (index.has_field("a"), index.has_field("c"), index.has_field("a\0")) == (True, False, False)
    assert index.count({"a\0": None}) == len(metadata)


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (1, {"number"}),
        ("1", {"text"}),
        (True, {"boolean"}),
        (["1", 1.5], {"text", "number"}),
        ({"b": 1}, {"object"}),
        *((value, set()) for value in ([["1"]], None, [])),
    ],
)
def test_fields_with_values_of_a_kind(where, value, kinds):
    index = stored(where, drawn(1, 1, 4)[0], [{"a'\"\\ü": value}])
    assert index.has_field("a'\"\\ü")
    assert {kind for kind in get_args(Kind) if index.has_field("a'\"\\ü", [kind])} == kinds
    assert index.has_field("a'\"\\ü", get_args(Kind)) == bool(kinds)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text('ab\\"u0'), json_values, max_size=3), min_size=1, max_size=20))
def test_metadata_come_back_as_they_were(postgres, metadata):
    index = stored(f"{postgres.address}#{next(names)}", np.ones((len(metadata), 2), np.float32), metadata)
    hits = index.search(drawn(1, 1, 2, contexts=1)[1], top_k=100)[0]
    for hit in hits:
        given = json.loads(written(canonical(metadata[int(hit.id)]) or "{}"))  # -0.0 is 0.0
        assert canonical(hit.metadata) == canonical(given)
    index.close()


def test_texts_are_bound(where):
    index = stored(where, drawn(3, 1, 4)[0], [{"'; DROP TABLE x; --": "'{}%s%(a)s"}, {}, {}])
    assert index.count({"'; DROP TABLE x; --": "'{}%s%(a)s"}) == 1
    text, values = condition({"key'": "value'"})
    assert "key'" not in text
    assert values == {"key0": "key'", "any0": ['"value\'"'], "within0": ['"value\'"']}


@pytest.mark.parametrize("record", [Candidate("a\0", "x"), Candidate("a", "x\0"), Candidate("a", "x", {"m": "\\\0"})])
def test_nul_is_an_error_that_names_the_record(record):
    with pytest.raises(InputError, match=r"line 3: not a candidate that PostgreSQL can hold: .* NUL"):
        PostgresIndex._entry(record._replace(where="line 3"))
    PostgresIndex._entry(Candidate("a", "x", {"m": "\\u0000"}))
