from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.rows import Entry, Row, encode_texts, hash_id, select_changed

OLD = Entry("a", "one", {"n": 1})
EXISTING = {"a": Row(OLD, is_stored=True)}
STORED = {hash_id("a"): np.array([3, 4], dtype=np.float32)}


def written(*entries: Entry, how: str = "add") -> list[Entry]:
    new = [(Candidate(entry.id, entry.text, entry.metadata, f"line {i}"), entry) for i, entry in enumerate(entries)]
    return [row.entry for row in select_changed(new, dict(EXISTING), STORED, dim=2, how=how, where="here")]


def with_vectors(*vectors: list[float] | None, how: str) -> list[Any]:
    """The vectors that are written for candidates that equal the existing one in all else."""
    new = [(Candidate("a", "one", {"n": 1}, vector=vector), OLD) for vector in vectors]
    rows = select_changed(new, dict(EXISTING), STORED, dim=2, how=how, where="here")
    return [None if row.vector is None else row.vector.tolist() for row in rows]


@pytest.mark.parametrize("how", ["put", "update"])
def test_another_vector_is_a_change(how):
    assert with_vectors([3, 4], None, how=how) == []
    assert with_vectors([4, 3], [4, 3], [3, 4], how=how) == [[4, 3], [3, 4]]
    nearly = float(np.nextafter(np.float32(3), np.float32(4)))
    assert with_vectors([nearly, 4], [nearly, 4], how=how) == [[nearly, 4]]
    with pytest.raises(InputError, match="its vector has 3 numbers, not 2"):
        with_vectors([3, 4, 0], how=how)


def test_a_vector_goes_with_its_text():
    """Within a change, another text of a candidate drops its vector, and other metadata keep it."""
    (vector,) = STORED.values()
    steps = [("two", {}, None), ("two", {}, vector), ("two", {"n": 1}, None), ("one", {"n": 1}, None)]
    new = [(Candidate("a", text, data, vector=row_vector), Entry("a", text, data)) for text, data, row_vector in steps]
    rows = list(select_changed(new, dict(EXISTING), STORED, dim=2, how="put", where="here"))
    assert [(row.vector is None, row.is_stored) for row in rows] == [
        (True, False),
        *[(False, False)] * 2,
        (True, False),
    ]
    (row,) = select_changed(
        [(new[3][0], OLD._replace(metadata={}))], dict(EXISTING), STORED, dim=2, how="put", where="here"
    )
    assert row == Row(OLD._replace(metadata={}), None, is_stored=True)


def test_another_vector_cannot_be_added():
    assert with_vectors([3, 4], [3.001, 4], how="add") == []  # encoded anew
    with pytest.raises(InputError, match="'one', which has other values in its vector"):
        with_vectors([4, 3], how="add")


def test_what_is_equal_is_not_written_again():
    new = Entry("b", "two", {})
    assert written(OLD, new, new) == [new]


@pytest.mark.parametrize("other", [OLD._replace(text="two"), OLD._replace(metadata={"n": True})], ids=["text", "n"])
def test_what_differs_replaces_or_is_an_error(other):
    assert written(other, how="put") == written(other, how="update") == [other]
    with pytest.raises(InputError, match="line 0: the id 'a' belongs to another candidate already, 'one'"):
        written(other)


def test_an_update_is_of_what_is_there():
    with pytest.raises(InputError, match="^line 0: here: no candidate has the id 'b'"):
        written(Entry("b", "two", {}), how="update")


def test_keys_are_of_one_length():
    keys = {hash_id(id_) for id_ in ("", "a", "a" * 100_000, "\ud800", "'; DROP")}
    assert len(keys) == 5
    assert all(len(key) == 32 and key.isalnum() for key in keys)


def test_texts_need_the_model():
    with pytest.raises(InputError, match="here: was opened without its model"):
        encode_texts(["one"], None, where="here")
