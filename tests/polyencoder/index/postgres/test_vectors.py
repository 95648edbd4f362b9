"""Vectors that exist become rows of a table: nothing is encoded, and each candidate keeps its own."""

from __future__ import annotations

import numpy as np
import pytest

from polyencoder.errors import InputError
from polyencoder.index import Candidate, Fingerprints, open_index
from polyencoder.index.open import make_index

pytestmark = pytest.mark.slow


def test_each_row_keeps_its_own_vector(where):
    unit = np.eye(4, dtype=np.float32)
    make_index([Candidate(id_, "hello", vector=unit[i]) for i, id_ in enumerate("ab")], where, Fingerprints("theirs"))
    index = open_index(where)
    index.update([Candidate("a", "hello", {"n": 1}), Candidate("b", "hello", {"n": 1})])
    assert [index.search(unit[i : i + 1], top_k=1)[0][0].id for i in range(2)] == ["a", "b"]
    with pytest.raises(InputError, match="was opened without its model"):
        index.put([Candidate("c", "one", vector=unit[2]), Candidate("c", "two")])
    index.add([Candidate("c", "one", vector=unit[2]), Candidate("c", "one", vector=unit[2])])
    with pytest.raises(InputError, match="which has other values in its vector"):
        index.add([Candidate("c", "one", vector=unit[3])])
    assert index.search(unit[2:3], top_k=1)[0][0].id == "c"
    index.put([Candidate("c", "one", vector=unit[3])])
    assert [index.search(unit[i : i + 1], top_k=1)[0][0].score for i in (2, 3)] == [0, 1]
    nearly = np.array([0.0095, 0, 0, 1], np.float32)
    assert [index.put([Candidate("c", "one", vector=nearly)]) for _ in range(2)] == [1, 0]
    np.testing.assert_array_equal(index.get_vectors(["c"])["c"], nearly)
    index.close()
