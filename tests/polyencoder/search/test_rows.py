from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.search.rows import ArrayRows, Block, QuantizedRows


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_array_is_read_in_blocks_of_views(size):
    vectors = np.arange(14.0).reshape(7, 2)
    blocks = [*ArrayRows(vectors).iter_blocks(size)]
    assert [block.first for block in blocks] == [*range(0, 7, size)]
    np.testing.assert_array_equal(np.concatenate([block.read_vectors() for block in blocks]), vectors)
    assert all(np.shares_memory(block.stored, vectors) for block in blocks)


def test_stored_numbers_become_floats():
    values = np.array([[1.5, -2.0], [3.0, 0.25]], dtype=np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    quantized = QuantizedRows(
        np.array([[1, 2], [3, -4]], np.int8), np.array([[0.5, 9, 0], [2, 9, 0]], dtype=np.float32)
    )
    for block, expected in (
        (Block(3, values), values),
        (Block(3, bits), values),
        (Block(3, values.astype(np.float16)), values),
        (Block(3, quantized.rows, quantized), [[0.5, 1], [6, -8]]),
    ):
        np.testing.assert_array_equal(block.read_vectors(), expected)
        assert block.read_vectors().dtype == np.float32
        np.testing.assert_array_equal(block.read_vectors(np.array([1])), expected[1:])
        part, selected = block.slice_rows(slice(1, 2)), block.select(np.array([1]))
        np.testing.assert_array_equal(part.read_vectors(), expected[1:])
        np.testing.assert_array_equal(selected.read_vectors(), expected[1:])
        np.testing.assert_array_equal(selected.read_vectors(np.array([0])), expected[1:])
        assert (part.first, selected.first, block.size, part.size, selected.size) == (4, 3, 2, 1, 1)


class Advised(mmap.mmap):
    """A file that keeps what it is advised of."""

    def madvise(self, *advice):
        self.__dict__.setdefault("advice", []).append(advice)
        super().madvise(*advice)


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="no advice on this system")
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1, 7, 384, 3000]), st.integers(0, 40))
def test_the_pages_of_the_rows_that_are_read_are_asked_for(tmp_path_factory, seed, dim, first):
    rng, header = np.random.default_rng(seed), 128
    path = tmp_path_factory.mktemp("rows") / "vectors"
    whole = rng.random((60, dim), np.float32)
    path.write_bytes(bytes(header) + whole.tobytes())
    with path.open("rb") as file:
        mapped = Advised(file.fileno(), 0, access=mmap.ACCESS_COPY)
    stored = np.frombuffer(mapped, np.float32, offset=header).reshape(60, dim).view(np.memmap)
    stored._mmap = mapped
    stored = stored[first:]
    rows = rng.permutation(60 - first)[: rng.integers(0, 20)]
    block = Block(first, stored)
    np.testing.assert_array_equal(block.read_vectors(rows), whole[first:][rows])
    pages = {
        page
        for what, start, length in mapped.__dict__.get("advice", [])
        for page in range(start // mmap.PAGESIZE, (start + length) // mmap.PAGESIZE)
        if what == mmap.MADV_WILLNEED
    }
    bounds = ((header + (first + row) * dim * 4, header + (first + row + 1) * dim * 4 - 1) for row in rows.tolist())
    assert pages == {page for a, b in bounds for page in range(a // mmap.PAGESIZE, b // mmap.PAGESIZE + 1)}
    np.testing.assert_array_equal(block.read_vectors(), whole[first:])
    assert mapped.advice[-1] == (mmap.MADV_NORMAL,)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 5, 384]), st.sampled_from([1e-43, 1e-38, 1e-3, 1.0, 1e30, 1e38]))
def test_rows_in_8_bits_and_how_far_they_are(seed, dim, size):
    random = np.random.default_rng(seed)
    vectors = (size * random.uniform(-1, 1, (30, dim))).astype(np.float32)
    vectors[random.random(30) < 0.2] = 0
    quantized = QuantizedRows.from_vectors(vectors)
    near = quantized.rows * quantized.bounds[:, :1].astype(np.float64)
    length, error = quantized.bounds[:, 1], quantized.bounds[:, 2]
    assert (np.linalg.norm(near, axis=1) <= length).all()
    assert (np.linalg.norm(near - vectors, axis=1) <= error).all()
    largest = np.abs(vectors).max(axis=1)
    plain = largest > 1e-36
    assert (error[plain] <= 1.01 * largest[plain] / 254 * dim**0.5).all()
    assert (np.abs(quantized.rows[plain]).max(axis=1, initial=0) == 127).all()
