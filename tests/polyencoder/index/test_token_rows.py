from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError
from polyencoder.index.token_rows import StoredTokens, TokenRows


@pytest.mark.slow
@given(data=st.data())
def test_any_rows_in_any_order(data):
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    random = np.random.default_rng(sum(lengths))
    read = [random.normal(size=(length, 3)).astype(np.float32) for length in lengths]
    cut = data.draw(st.integers(0, len(read) - 1))
    parts_of = [arrays for arrays in (read[:cut], read[cut:]) if arrays]
    stored = StoredTokens(dtype="float16", dim=3, fingerprint="")
    parts = [TokenRows.empty([len(tokens) for tokens in arrays], stored) for arrays in parts_of]
    for part, arrays in zip(parts, parts_of, strict=True):
        for row, tokens in reversed(list(enumerate(arrays))):
            part.put([row], [tokens])
    rows = np.array(data.draw(st.lists(st.integers(0, len(read) - 1), min_size=1, max_size=9)))
    starts = [0, len(parts_of[0])]
    files = [(rows >= start) & (rows < start + len(arrays)) for start, arrays in zip(starts, parts_of, strict=False)]
    whole = TokenRows.concatenate(parts)
    for selected in (
        TokenRows.copy_rows([(whole, np.arange(len(rows)), rows)]),
        TokenRows.copy_rows(
            [
                (part, np.flatnonzero(inside), rows[inside] - start)
                for part, inside, start in zip(parts, files, starts, strict=False)
                if inside.any()
            ]
        ),
    ):
        for row, tokens in zip(rows.tolist(), selected.list_vectors(), strict=True):
            expected = read[row] / np.linalg.norm(read[row], axis=1, keepdims=True)
            np.testing.assert_allclose(tokens, expected, rtol=2e-3, atol=2e-3)


def test_memory_holds_one_copy_of_what_is_taken():
    stored = np.random.default_rng(0).integers(-127, 127, (60_000, 64), dtype=np.int8)
    part, rows = TokenRows(stored, np.arange(0, 60_001, 10)), np.arange(6_000)[::-1]
    tracemalloc.start()
    try:
        selected = TokenRows.copy_rows([(part, np.arange(len(rows)), rows)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(selected.stored.reshape(6_000, 10, 64), stored.reshape(6_000, 10, 64)[::-1])
    assert peak < 1.5 * stored.nbytes


def test_damaged_offsets_are_an_error():
    part = TokenRows(np.zeros((3, 2), np.int8), np.array([0, 2, 1]))
    with pytest.raises(CheckpointError, match="are damaged"):
        TokenRows.copy_rows([(part, np.arange(2), np.arange(2))])
