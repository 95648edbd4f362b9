"""Torch's kernel for sequences of any lengths is called as each version of it wants, and left alone if it is another.

The kernel itself needs a GPU; what stands for it here computes the same, sequence by sequence.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from polyencoder.modeling import varlen

NAME = "torch.nn.attention.varlen"
ENDS = torch.tensor([0, 3, 4, 9], dtype=torch.int32)


def expected(query, key, value, *, scale, window):
    """Attention of each sequence alone, within the window."""
    outputs = []
    for start, end in zip(ENDS[:-1].tolist(), ENDS[1:].tolist(), strict=True):
        positions = torch.arange(end - start)
        near = (positions - positions[:, None]).abs() < (window or len(positions))
        parts = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        outputs.append(F.scaled_dot_product_attention(*parts, attn_mask=near, scale=scale).transpose(0, 1))
    return torch.cat(outputs)


def first_version(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
    return third_version(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)


def third_version(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    assert torch.equal(cu_seq_q, ENDS)
    assert torch.equal(cu_seq_k, ENDS)
    assert max_q == max_k == 5
    left, right = window_size
    assert left == right
    return expected(query, key, value, scale=scale, window=None if left < 0 else left + 1)


def other_order(query, key, value, max_q, max_k, cu_seq_q, cu_seq_k):
    raise AssertionError("called")


@pytest.fixture
def use(monkeypatch):
    """Have a function be torch's kernel; None for a torch whose module has none."""

    def put(function):
        module = ModuleType(NAME)
        module.__spec__ = ModuleSpec(NAME, None)
        if function is not None:
            module.varlen_attn = function
        monkeypatch.setitem(sys.modules, NAME, module)

    caches = (varlen._load_torch_kernel, varlen._list_torch_options)
    for cache in caches:
        cache.cache_clear()
    yield put
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize(("kernel", "window"), [(first_version, None), (third_version, None), (third_version, 2)])
def test_each_version_is_called_as_it_wants(use, kernel, window, scale):
    use(kernel)
    query, key, value = torch.randn(3, 9, 2, 8, generator=torch.Generator().manual_seed(0))
    options = varlen.AttentionOptions(scale=scale, window=window)
    outputs = varlen._load_torch_kernel()(query, key, value, ENDS, 5, options)
    torch.testing.assert_close(outputs, expected(query, key, value, scale=scale, window=window))


@pytest.mark.parametrize("kernel", [other_order, None])
def test_another_function_of_that_name_is_left_alone(use, kernel):
    use(kernel)
    assert varlen._load_torch_kernel() is None
