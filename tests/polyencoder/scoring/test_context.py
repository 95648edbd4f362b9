from __future__ import annotations

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.context import stacked


def test_sizes():
    context = ContextEncoding(torch.zeros(2, 3, 4))
    assert (context.batch_size, context.n_codes, context.dim) == (2, 3, 4)


@pytest.mark.parametrize("vectors", [torch.zeros(3, 4), torch.zeros(2, 0, 4), torch.zeros(2, 3, 4, dtype=torch.int64)])
def test_vectors_of_another_shape_or_dtype_are_refused(vectors):
    with pytest.raises(InputError, match=r"\[batch, codes, dim\]"):
        ContextEncoding(vectors)


@pytest.mark.parametrize("mask", [torch.ones(2, 3), torch.ones(3, 2, dtype=torch.bool), torch.ones(2, 3, 1) > 0])
def test_masks_of_another_shape_or_dtype_are_refused(mask):
    with pytest.raises(InputError, match=r"must be torch.bool \[2, 3\]"):
        ContextEncoding(torch.zeros(2, 3, 4), mask)


def test_select_keeps_vectors_and_mask_together():
    vectors, mask = torch.randn(4, 3, 2), torch.rand(4, 3) > 0.5
    context = ContextEncoding(vectors, mask)
    places = ((slice(1, 3), [1, 2]), (torch.tensor([3, 0]), [3, 0]), (2, [2]), (-1, [3]))
    for rows, expected in (*places, ([3, 0], [3, 0]), (range(1, 3), [1, 2]), ([2], [2]), ([], [])):
        part = context.select(rows)
        assert torch.equal(part.vectors, vectors[expected])
        assert part.mask is not None
        assert torch.equal(part.mask, mask[expected])


@pytest.mark.parametrize("row", [4, -5])
def test_select_outside_the_batch(row):
    with pytest.raises(InputError, match="batch of 4"):
        ContextEncoding(torch.zeros(4, 3, 2)).select(row)


def test_to_changes_the_vectors_but_not_the_mask():
    context = ContextEncoding(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).to(dtype=torch.bfloat16)
    assert context.vectors.dtype == torch.bfloat16
    assert context.mask is not None
    assert context.mask.dtype == torch.bool


def test_stacked_contexts_with_and_without_masks():
    one, two = ContextEncoding(torch.ones(1, 2, 3)), ContextEncoding(torch.ones(2, 4, 3))
    masked = ContextEncoding(torch.ones(1, 4, 3), torch.tensor([[True, True, False, False]]))
    together = stacked([one, two, masked])
    assert together.vectors.shape == (4, 4, 3)
    assert together.mask.sum(1).tolist() == [2, 4, 4, 2]
    assert stacked([two, two]).mask is None
