from __future__ import annotations

import numpy as np
import pytest

from polyencoder.search.rows import ArrayRows, Block


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_array_is_read_in_blocks_of_views(size):
    vectors = np.arange(14.0).reshape(7, 2)
    blocks = [*ArrayRows(vectors).chunks(size)]
    assert [block.first for block in blocks] == [*range(0, 7, size)]
    np.testing.assert_array_equal(np.concatenate([block.vectors() for block in blocks]), vectors)
    assert all(np.shares_memory(block.stored, vectors) for block in blocks)


def test_stored_numbers_become_floats():
    values = np.array([[1.5, -2.0], [3.0, 0.25]], dtype=np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    scales = np.array([0.5, 2], dtype=np.float32)
    for block, expected in (
        (Block(3, values), values),
        (Block(3, bits), values),
        (Block(3, values.astype(np.float16)), values),
        (Block(3, np.array([[1, 2], [3, -4]], np.int8), scales), [[0.5, 1], [6, -8]]),
    ):
        np.testing.assert_array_equal(block.vectors(), expected)
        assert block.vectors().dtype == np.float32
        np.testing.assert_array_equal(block.vectors(np.array([1])), expected[1:])
        part, some = block.part(slice(1, 2)), block.select(np.array([1]))
        np.testing.assert_array_equal(part.vectors(), expected[1:])
        np.testing.assert_array_equal(some.vectors(), expected[1:])
        assert (part.first, some.first) == (4, 3)
