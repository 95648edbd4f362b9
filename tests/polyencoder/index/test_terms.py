"""Filters by terms: a table of values and filters is equal in a folder, PostgreSQL and Milvus."""

from __future__ import annotations

import contextlib
import random
from itertools import product
from typing import get_args

import numpy as np
import pytest

from polyencoder.errors import InputError
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import make_index
from polyencoder.index.terms import LENGTH, list_bounds, list_field_terms, list_terms
from polyencoder.index.values import Kind, format_value_text
from tests.parameters import mostly_long
from tests.polyencoder.index.filtering import passes, random_filter, random_metadata

VALUES = [None, True, False, 0, 1, 1.0, -1.5, 10**20, 2**53 + 1, 1e23, "1", "true", "", [1, "ü'\"\\"], {"a": 1}]
FILTERS = [None, True, False, 0, 1, 1.0, -1.5, 1e20, 2**53, 10**23, "1", "true", "", "ü'\"\\", [0, None, "true"]]
METADATA = [*({"k": value} for value in [*VALUES, [], [None, True], [[1]], [{"a": 1}]]), {}, {"b": 1}]
RANDOM = [random_metadata(random.Random(seed)) for seed in range(200)]


def open_with(metadata, engine, where):
    """An index of candidates with these metadata, and the vectors."""
    vectors = np.random.default_rng(0).standard_normal((len(metadata), 4)).astype(np.float32)
    records = [Candidate(str(i), f"text {i}", fields, "", vectors[i]) for i, fields in enumerate(metadata)]
    options = {"faiss": "ivf-flat,nlist=1"} if engine == "faiss" else {}
    return make_index(records, where, Fingerprints("made"), IndexOptions(**options)), vectors


@pytest.fixture(params=["folder", "milvus", "postgres"])
def passing(request, make_where):
    """(filter) -> the positions of the metadata that pass it, and (key, kinds) -> whether any has such a field."""
    index, vectors = open_with(METADATA, request.param, make_where(request.param))
    with index:

        def find_positions(filter):
            (hits,) = index.search(vectors[:1], top_k=100, filter=filter)
            assert index.count(filter) == len(hits)
            assert all(hit.metadata == (METADATA[int(hit.id)] or None) for hit in hits)
            return {int(hit.id) for hit in hits}

        yield find_positions, index.has_field


@pytest.fixture
def open_random(make_where):
    """(engine) -> an index of random metadata, and the vectors of its first candidate."""
    with contextlib.ExitStack() as stack:

        def open_(engine):
            if engine == "faiss":
                pytest.importorskip("faiss")
            index, vectors = open_with(RANDOM, engine, make_where(engine))
            return stack.enter_context(index), vectors[:1]

        yield open_


@pytest.mark.slow
@mostly_long(("filters", "engine"), [*product((200, 2000), ("folder", "faiss", "milvus", "postgres"))], quick=4)
def test_random_filters_against_python(open_random, engine, filters):
    """Counted; and of every tenth filter, the candidates are searched."""
    index, context = open_random(engine)
    for seed in range(filters):
        filter = random_filter(random.Random(seed))
        expected = {str(position) for position, metadata in enumerate(RANDOM) if passes(metadata, filter)}
        assert index.count(filter) == len(expected), filter
        if seed % 10 == 0:
            (hits,) = index.search(context, top_k=len(RANDOM), filter=filter)
            assert {hit.id for hit in hits} == expected, filter
    unwanted = {"$or": [{"a": {"$gt": 0}}, {"b": {"$lte": "b"}}]}
    left = [metadata for metadata in RANDOM if not passes(metadata, unwanted)]
    assert index.remove_where(unwanted) == len(RANDOM) - len(left) > 0
    assert len(index) == len(left)
    assert index.count(unwanted) == 0
    assert index.count({"a": {"$exists": True}}) == sum("a" in metadata for metadata in left)
    for filter, named in (({}, "is empty"), ({"c": 1}, "no candidate"), ({"c": None}, "no candidate")):
        with pytest.raises(InputError, match=named):
            index.remove_where(filter)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["folder", "milvus", "postgres"])
def test_what_is_removed_by_a_filter_is_what_the_block_has_made(make_where, make_ranker, engine):
    """No candidate has a value of a field that the block has removed: each would pass a test that excludes values."""
    with make_index(["a", Candidate("old", "b", {"k": 1})], make_where(engine), make_ranker("bi")) as index:
        with index.changing():
            index.add([Candidate("new", "c", {"k": "text", "n": 1})])
            assert index.remove_where({"k": "text", "n": {"$gt": 0}}) == 1
        with index.changing():
            index.put([Candidate("x", "c", {"n": 1})])
            with index.changing():
                index.remove(["old"])
                index.put([Candidate("x", "c", {"n": "text"})])
            for filter, named in (({"k": {"$nin": [2]}}, "no candidate of the index has"), ({"n": 1}, "is a number")):
                with pytest.raises(InputError, match=named):
                    index.remove_where(filter)
            assert index.remove_where({"n": "text"}) == 1
            index.add([Candidate("y", "d")])
        assert len(index) == 2
        with pytest.raises(InputError, match="no candidate of the index has"):
            index.remove_where({"k": {"$nin": [2]}})


def test_bounds_are_the_smallest_and_largest_of_each_kind():
    bounds = list_bounds({"k": [3, -1, "b", "a", True, None, {"a": 1}], "none": None})
    assert len(bounds) == 4
    assert {*bounds.values()} == {format_value_text(value).encode().hex() for value in (3, -1, "a", "b")}


@pytest.mark.slow
def test_every_value_beside_every_filter(passing):
    find_positions, has_field = passing
    for options in [*FILTERS, [], FILTERS[:-1]]:
        right = {position for position, fields in enumerate(METADATA) if passes(fields, {"k": options})}
        assert find_positions({"k": options}) == right, options
    assert find_positions({"k": 1, "b": None}) == {4, 5, 13}
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
    terms = {*list_terms({"k": value})}
    assert not terms.isdisjoint(list_field_terms("k"))  # a null field is one, too
    assert {kind for kind in get_args(Kind) if not terms.isdisjoint(list_field_terms("k", [kind]))} == kinds


def test_terms_are_short_and_distinct():
    metadata = {
        "k": ["number", "null", 1, True, *range(50)],
        "number": "k",
        "k\0": 1,
        "long": "x" * 10_000,
        "ü": 9**999,
    }
    terms = list_terms(metadata)
    assert len({*terms}) == len(terms)
    assert {len(term) for term in terms} == {LENGTH}
    assert all(term.isalnum() for term in terms)
