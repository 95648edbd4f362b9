"""Candidates as indexes hold them: canonical metadata, ids that follow from text and metadata, and what is refused."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import (
    Candidate,
    build_duplicate_id_error,
    check_candidate,
    check_records,
    format_metadata,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_metadata_is_json_whose_order_says_nothing(metadata):
    formatted = format_metadata(metadata)
    assert json.loads(formatted) == metadata
    assert format_metadata(dict(reversed(metadata.items()))) == formatted


def test_what_json_lacks_becomes_what_it_has():
    metadata = {"n": np.int64(3), "some": np.array([1.5, 2]), "day": date(2024, 2, 29), "price": Decimal("1.10")}
    assert format_metadata(metadata) == '{"day":"2024-02-29","n":3,"price":"1.10","some":[1.5,2.0]}'
    moment = np.datetime64("2024-02-29T12:30", "ns")
    assert format_metadata({"all": np.array([moment]), "moment": moment, "took": np.timedelta64(90 * 10**9, "ns")}) == (
        '{"all":["2024-02-29 12:30:00"],"moment":"2024-02-29 12:30:00","took":"0:01:30"}'
    )
    assert format_metadata({"ü": "ß"}) == '{"ü":"ß"}'
    assert format_metadata({}) is format_metadata(None) is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([1], r"its metadata is \[1\]; it must be a dict with texts as keys"),
        ({1: "x"}, "it must be a dict with texts as keys"),
        ({"a": 1, "b": float("nan")}, "its metadata b is nan; nan and infinity cannot be kept"),
        ({"a": 1, "b": [{3}]}, r"its 'b' is \[\{3\}\]; JSON has no set: give a text, a number"),
        ({"a": "\ud800"}, "its metadata"),
        ({"k": {1: "a", "1": "b"}}, r"its metadata k has the key 1 \(int\), which is no text"),
        ({"k": [{None: 1}]}, "its metadata k.0 has the key None"),
    ],
)
def test_metadata_that_cannot_be_kept_is_named(metadata, message):
    with pytest.raises(ValueError, match=message):
        format_metadata(metadata)


def test_numbers_of_numpy_are_ids():
    assert [candidate.id for candidate in check_records({"text": "a", "id": id_} for id_ in np.arange(2))] == ["0", "1"]


def test_a_table_is_no_list_of_records():
    for values in (pandas.DataFrame({"text": ["a", "b"], "id": ["1", "2"]}), np.array([["a", "b"]])):
        with pytest.raises(InputError, match="give a list of texts or of records"):
            check_records(values)
    assert len([*check_records(pandas.Series(["a", "b"]))]) == 2


def test_an_id_follows_from_text_and_metadata():
    explicit = check_candidate(Candidate("7", "a", {"x": 1}))
    assert explicit == ("a", "7", '{"x":1}')
    ids = [
        check_candidate(Candidate(None, text, extra))[1] for text in ("a", "b") for extra in (None, {"x": 1}, {"x": 2})
    ]
    assert len(set(ids)) == 6
    assert ids == [
        check_candidate(Candidate(None, text, x))[1] for text in ("a", "b") for x in ({}, {"x": 1}, {"x": 2})
    ]
    assert all(len(id_) == 20 for id_ in ids)


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (Candidate(None, " \n"), "its text is empty"),
        (Candidate(None, 3), "its text is 3"),
        (Candidate("", "a"), "its id is ''; it must be text that is not empty"),
        (Candidate(3, "a"), "its id is 3; it must be text"),
    ],
)
def test_a_candidate_without_text_or_id_is_refused(candidate, message):
    with pytest.raises(ValueError, match=message):
        check_candidate(candidate)


def test_an_id_that_is_taken_shows_whose_it_is():
    message = str(build_duplicate_id_error(Candidate("7", "new"), "7", "x" * 60, other="text"))
    assert message.startswith(f"the id '7' belongs to another candidate already, '{'x' * 60}', which has other text")
    assert f"'{'x' * 57}...'" in str(build_duplicate_id_error(Candidate("7", "new"), "7", "x" * 61, other="text"))
