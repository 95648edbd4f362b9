from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.vectors import Vectors, get_vectors_file, quantize, write_vectors
from polyencoder.search.rows import Block, QuantizedRows

DTYPES = ["float32", "float16", "bfloat16", "int8"]
DIM = 5
SIZES = [4, 1, 7]  # rows of the files


def random_rows(n: int, *, seed: int = 0) -> np.ndarray:
    """Rows of very different lengths; one is zero."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(n, DIM)) * 10.0 ** random.integers(-3, 4, (n, 1))
    rows[n // 2] = 0
    return rows.astype(np.float32)


@pytest.fixture
def rows() -> np.ndarray:
    return random_rows(sum(SIZES))


def write(folder, rows, dtype) -> None:
    first = 0
    for part in np.split(rows, np.cumsum(SIZES)[:-1]):
        write_vectors(folder, first, *quantize(part, dtype))
        first += len(part)


@pytest.fixture(params=DTYPES)
def dtype(request):
    return request.param


@pytest.fixture
def vectors(tmp_path, rows, dtype, open_vectors) -> Vectors:
    write(tmp_path, rows, dtype)
    return open_vectors(tmp_path, dim=DIM, dtype=dtype)


def allowed_error(rows, dtype) -> np.ndarray:
    """The most that rounding may move each number, from the formats' definitions."""
    if dtype == "int8":
        return np.abs(rows).max(axis=1, keepdims=True) / 127 / 2 * 1.0001 + 1e-38
    relative = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    return np.abs(rows) * relative + {"float16": 2**-25}.get(dtype, 0)  # below: subnormal numbers


def test_what_was_written_is_read(vectors, rows, dtype):
    assert len(vectors) == sum(SIZES)
    read = vectors.take(np.arange(len(rows)))
    assert read.dtype == np.float32
    assert (np.abs(read - rows) <= allowed_error(rows, dtype)).all()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_are_the_rows_in_order(vectors, dtype, size):
    first_row = 0
    for block in vectors.iter_blocks(size):
        assert block.first == first_row
        assert 1 <= len(block.stored) <= size
        assert np.shares_memory(block.stored, block.quantized.rows) == (dtype == "int8")
        rows = np.arange(first_row, first_row + len(block.stored))
        np.testing.assert_array_equal(block.read_vectors(), vectors.take(rows))
        first_row += len(rows)
    assert first_row == len(vectors)


def test_chunks_are_views_of_the_files(vectors, open_vectors):
    for first, second in zip(vectors.iter_blocks(2), vectors.iter_blocks(2), strict=True):
        assert np.shares_memory(first.stored, second.stored)
    for block in vectors.iter_blocks(100):
        before = block.stored.copy()
        block.stored[:] = 0  # reaches this process's memory alone
        on_disk = open_vectors(vectors.folder, dim=DIM, dtype=vectors.dtype)
        assert any(np.array_equal(before, other.stored) for other in on_disk.iter_blocks(100))


@pytest.mark.slow
@given(row_numbers=st.lists(st.integers(0, sum(SIZES) - 1), max_size=30), dtype=st.sampled_from(DTYPES))
@settings(max_examples=40, deadline=None)
def test_rows_in_any_order(tmp_path_factory, row_numbers, dtype, open_vectors):
    folder = tmp_path_factory.mktemp("vectors")
    write(folder, random_rows(sum(SIZES)), dtype)
    vectors = open_vectors(folder, dim=DIM, dtype=dtype)
    everything, row_numbers = vectors.take(np.arange(len(vectors))), np.array(row_numbers, dtype=np.int64)
    np.testing.assert_array_equal(vectors.take(row_numbers), everything[row_numbers])
    stored, quantized = vectors.read_stored(row_numbers)
    np.testing.assert_array_equal(Block(0, stored, quantized).read_vectors(), everything[row_numbers])
    expected = QuantizedRows.from_vectors(everything[row_numbers])
    np.testing.assert_array_equal(quantized.rows, expected.rows)
    if dtype != "int8":
        np.testing.assert_array_equal(quantized.bounds, expected.bounds)


def test_no_rows(tmp_path, open_vectors):
    vectors = open_vectors(tmp_path, dim=DIM, dtype="int8")
    assert len(vectors) == 0
    assert list(vectors.iter_blocks(3)) == []
    assert vectors.take(np.empty(0, dtype=np.int64)).shape == (0, DIM)


@pytest.mark.parametrize("row", [-1, sum(SIZES)])
def test_a_row_that_is_not_there(vectors, row):
    with pytest.raises(InputError, match="the index has rows 0 to 11"):
        vectors.take(np.array([0, row]))


def test_files_that_are_named(vectors, tmp_path, dtype):
    """What other texts have become is in a file of another tag, which is of no account unless it is named."""
    rows = quantize(random_rows(2, seed=1), dtype)
    names = [write_vectors(tmp_path, 4, *rows, tag=tag * 16).name for tag in "ab"]
    assert len(set(names)) == 2
    named = Vectors.open(tmp_path, [vectors.names[0], names[1]], dim=DIM, dtype=dtype, before=vectors)
    assert named.names == (vectors.names[0], names[1])
    np.testing.assert_array_equal(named.take(np.arange(4)), vectors.take(np.arange(4)))
    assert np.shares_memory(next(named.iter_blocks(4)).stored, next(vectors.iter_blocks(4)).stored)  # not mapped again
    assert (named.find_file(4, 2), named.find_file(4, 1), named.find_file(0, 4)) == (names[1], None, vectors.names[0])
    assert (named.find_file(2, 2), named.find_file(6, 0)) == (None, None)
    with pytest.raises(CheckpointError, match="not the name of a file of vectors"):
        Vectors.open(tmp_path, ["../vectors.npy"], dim=DIM, dtype=dtype)


@pytest.mark.parametrize("keep", [0, 60, -1])
def test_a_file_cut_short(vectors, tmp_path, dtype, keep, open_vectors):
    path = get_vectors_file(tmp_path, 4)
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match="vectors-000000000004.npy: truncated"):
        open_vectors(tmp_path, dim=DIM, dtype=dtype)


def test_a_file_that_is_missing(vectors, tmp_path, dtype, open_vectors):
    get_vectors_file(tmp_path, 4).unlink()
    with pytest.raises(CheckpointError, match="vectors-000000000004.npy is missing"):
        open_vectors(tmp_path, dim=DIM, dtype=dtype)


@pytest.mark.parametrize(("dtype", "what"), [("int8", "bounds"), ("float32", "bounds"), ("float32", "int8")])
def test_what_is_beside_it_is_missing(tmp_path, rows, open_vectors, dtype, what):
    write(tmp_path, rows, dtype)
    (tmp_path / f"vectors-000000000005.{what}.npy").unlink()
    with pytest.raises(CheckpointError, match=f"vectors-000000000005.{what}.npy: .*missing"):
        open_vectors(tmp_path, dim=DIM, dtype=dtype)


def test_files_of_another_shape_or_dtype(tmp_path, rows, open_vectors):
    write(tmp_path, rows, "float16")
    with pytest.raises(CheckpointError, match=r"has float16 \[4, 5\]; the index has float16 \['rows', 6\]"):
        open_vectors(tmp_path, dim=6, dtype="float16")
    with pytest.raises(CheckpointError, match="has float16 .* the index has float32"):
        open_vectors(tmp_path, dim=5, dtype="float32")


def test_a_header_that_is_damaged_so_that_it_never_ends(vectors, tmp_path, dtype, open_vectors):
    path = get_vectors_file(tmp_path, 4)
    path.write_bytes(path.read_bytes().replace(b"}", b"{", 1))
    with pytest.raises(CheckpointError, match="vectors-000000000004.npy: truncated, damaged") as error:
        open_vectors(tmp_path, dim=DIM, dtype=dtype)
    assert len(str(error.value).splitlines()) == 1


def test_an_archive_of_arrays(tmp_path, open_vectors):
    np.savez(tmp_path / "x.npz", a=np.zeros((4, DIM), dtype=np.float32))
    (tmp_path / "x.npz").rename(get_vectors_file(tmp_path, 0))
    with pytest.raises(CheckpointError, match="damaged or missing .an archive of arrays"):
        open_vectors(tmp_path, dim=DIM, dtype="float32")


def test_a_pickle_is_not_run(tmp_path, malicious_pickle, open_vectors):
    data, witness = malicious_pickle(4)
    get_vectors_file(tmp_path, 0).write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        open_vectors(tmp_path, dim=DIM, dtype="float32")
    assert not witness.exists()


def test_numbers_that_cannot_be_stored(dtype):
    with pytest.raises(InputError, match="not finite"):
        quantize(np.array([[0.0, np.nan]]), dtype)
    with pytest.raises(InputError, match="not finite"):
        quantize(np.array([[0.0, np.inf]]), dtype)
    with pytest.raises(InputError, match="vectors of the candidate 'second' that are not finite"):
        quantize(np.array([[0.0, 1.0], [np.nan, 0.0]]), dtype, texts=["first", "second"])
    large = np.array([[7e4, 0.0]], dtype=np.float32)
    if dtype == "float16":
        with pytest.raises(InputError, match=r"up to 7e\+04, more than float16 can hold; store them as bfloat16"):
            quantize(large, dtype)
    else:
        quantize(large, dtype)


def test_numbers_that_are_too_small_for_float16(dtype):
    tiny = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32) * np.float32(1e-9)
    tiny[0] += 1  # beside large numbers small ones may vanish
    if dtype == "float16":
        match = r"vectors of the candidate 'b' have only numbers up to 2.*e-09, too small for float16"
        with pytest.raises(InputError, match=match):
            quantize(tiny, dtype, texts=["a", "b", "c"])
        with pytest.raises(InputError, match="too small for float16"):
            quantize(tiny[1:] * np.float32(1e-30), dtype)
    else:
        quantize(tiny, dtype)
    for rows in (np.zeros((1, 8), np.float32), np.array([[1, 0, 1e-9, 0]]), tiny[1:] * np.float32(1e6), tiny[:1]):
        quantize(rows, dtype)


def test_the_file_is_numpys(tmp_path, rows):
    """Anyone can read it; bfloat16 as the upper half of float32."""
    write(tmp_path, rows, "bfloat16")
    bits = np.load(get_vectors_file(tmp_path, 0)).astype(np.uint32) << 16
    assert (bits.view(np.float32) == torch.from_numpy(rows[:4]).bfloat16().float().numpy()).all()
