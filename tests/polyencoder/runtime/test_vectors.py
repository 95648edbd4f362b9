"""Vectors in numpy: the rows and the best that torch finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder import CheckpointError, InputError
from polyencoder.index.vectors import Vectors as TorchVectors
from polyencoder.index.vectors import quantize, write_vectors
from polyencoder.runtime import vectors as module
from polyencoder.runtime.vectors import MappedFile, TopK, Vectors
from polyencoder.scoring import ContextEncoding, search


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_the_rows_of_torch(tmp_path, dtype):
    torch.manual_seed(0)
    values, settings = torch.randn(23, 6), {"dim": 6, "dtype": dtype}
    paths = [write_vectors(tmp_path, i, *quantize(values[i : i + 10], dtype)) for i in (0, 10, 20)]
    opened = Vectors([MappedFile.open(path, **settings) for path in paths], dim=6)
    rows = torch.randint(23, (40,))
    expected = TorchVectors.open(tmp_path, [path.name for path in paths], **settings).take(rows)
    np.testing.assert_array_equal(opened.take(rows.numpy()), expected)
    assert (len(opened), opened.take(np.empty(0, np.int64)).shape) == (23, (0, 6))
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated, damaged or missing"):
        MappedFile.open(paths[1], **settings)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 3), st.integers(1, 8), st.booleans())
def test_the_best_of_torch(seed, rows, contexts, block, whole):
    """Of whole numbers, which have ties, too."""
    torch.manual_seed(seed)
    values, asking = torch.randn(rows, 3), torch.randn(contexts, 1, 3)
    values, asking = (values.round(), asking.round()) if whole else (values, asking)
    allowed = torch.rand(rows) < 0.7
    allowed[0] = True
    k = int(torch.randint(1, int(allowed.sum()) + 1, ()))
    files = [MappedFile(part.numpy(), None) for part in values.split(11)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", block)
        for mask in (allowed, None):
            found = Vectors(files, dim=3).best(
                lambda some: asking[:, 0].numpy() @ some.T,
                contexts=contexts,
                k=k,
                allowed=None if mask is None else mask.numpy(),
            )
            expected = search(ContextEncoding(asking), values, k=k, allowed=mask)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(found.rows, expected.indices)


def test_nothing_is_the_best_of_nothing():
    files = [MappedFile(np.ones((3, 2), np.float32), None)]
    found = Vectors(files, dim=2).best(
        lambda some: some[:, 0][None], contexts=1, k=2, allowed=np.zeros(3, dtype=np.bool_)
    )
    assert found.rows.shape == (1, 0)


def test_scores_that_are_nan():
    files = [MappedFile(np.full((3, 2), np.nan, np.float32), None)]
    with pytest.raises(InputError, match="the model's scores are nan"):
        Vectors(files, dim=2).best(lambda some: some[:, 0][None], contexts=1, k=2, allowed=None)


def test_the_first_of_equals_are_kept():
    found = TopK(np.array([[1.0, 3.0, 1.0, 3.0]]), np.array([[4, 5, 6, 7]])).first(3)
    assert found.rows.tolist() == [[5, 7, 4]]
