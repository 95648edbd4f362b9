"""Filters by terms: a table of values and filters is equal in a folder, PostgreSQL and Milvus."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.filters import Kind
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import make_index
from polyencoder.index.terms import LENGTH, conditions, field_terms, terms_of
from tests.polyencoder.index.filtering import passes

VALUES = [None, True, False, 0, 1, 1.0, -1.5, 10**20, 2**53 + 1, 1e23, "1", "true", "", [1, "ü'\"\\"], {"a": 1}]
FILTERS = [None, True, False, 0, 1, 1.0, -1.5, 1e20, 2**53, 10**23, "1", "true", "", "ü'\"\\", [0, None, "true"]]
METADATA = [*({"k": value} for value in [*VALUES, [], [None, True], [[1]], [{"a": 1}]]), {}, {"b": 1}]


def naive(metadata: dict, filter: dict) -> bool:
    terms = {*terms_of(metadata)}
    return all(
        not terms.isdisjoint(any_of) or (absent is not None and absent not in terms)
        for any_of, absent in conditions(filter)
    )


@pytest.fixture(params=["terms", "folder", "milvus", "postgres"])
def passing(request, tmp_path):
    """(filter) -> the places of the metadata that pass it, and (key, kinds) -> whether any has such a field."""
    if request.param == "terms":
        every = {term for one in METADATA for term in terms_of(one)}
        yield (
            lambda filter: {place for place, one in enumerate(METADATA) if naive(one, filter)},
            lambda key, kinds: not every.isdisjoint(field_terms(key, kinds)),
        )
        return
    if request.param == "milvus":
        pytest.importorskip("milvus_lite")
    where = str(tmp_path / "index") if request.param == "folder" else f"milvus:{tmp_path}/a.db"
    if request.param == "postgres":
        where = f"{request.getfixturevalue('postgres').address}#terms"
    vectors = np.random.default_rng(0).standard_normal((len(METADATA), 4)).astype(np.float32)
    records = [Candidate(str(i), f"text {i}", one, "", vectors[i]) for i, one in enumerate(METADATA)]
    with make_index(records, where, Fingerprints("made")) as index:

        def found(filter):
            (hits,) = index.search(vectors[:1], top_k=100, filter=filter)
            assert index.count(filter) == len(hits)
            assert all(hit.metadata == (METADATA[int(hit.id)] or None) for hit in hits)
            return {int(hit.id) for hit in hits}

        yield found, index.has_field


def test_every_value_beside_every_filter(passing):
    found, has_field = passing
    for options in [*FILTERS, [], FILTERS[:-1]]:
        right = {place for place, one in enumerate(METADATA) if passes(one, {"k": options})}
        assert found({"k": options}) == right, options
    assert found({"k": 1, "b": None}) == {4, 5, 13}
    assert (has_field("k", ()), has_field("b", ()), has_field("c", ())) == (True, True, False)
    assert {kind for kind in get_args(Kind) if has_field("k", [kind])} == {*get_args(Kind)}
    assert {kind for kind in get_args(Kind) if has_field("b", [kind])} == {"number"}


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
def test_fields_with_values_of_a_kind(value, kinds):
    terms = {*terms_of({"k": value})}
    assert not terms.isdisjoint(field_terms("k"))  # a null field is one, too
    assert {kind for kind in get_args(Kind) if not terms.isdisjoint(field_terms("k", [kind]))} == kinds


def test_terms_are_short_and_distinct():
    metadata = {
        "k": ["number", "null", 1, True, *range(50)],
        "number": "k",
        "k\0": 1,
        "long": "x" * 10_000,
        "ü": 9**999,
    }
    terms = terms_of(metadata)
    assert len({*terms}) == len(terms)
    assert {len(term) for term in terms} == {LENGTH}
    assert all(term.isalnum() for term in terms)


@pytest.mark.parametrize("value", [{"a": 1}, math.nan, b"x"])
def test_what_cannot_be_filtered_by(value):
    with pytest.raises(InputError, match="cannot filter by 'key'"):
        conditions({"key": value})
