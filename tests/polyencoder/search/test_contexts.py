from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.scoring import ContextEncoding, Keys
from polyencoder.search.contexts import Contexts, ContextTokens, check_finite, stack_arrays


def test_what_torch_encoded():
    mask = torch.tensor([[True, False], [True, True]])
    keys = Keys(torch.randn(2, 2, 3), torch.randn(2, 2), heads=2)
    encoded = ContextEncoding(torch.randn(2, 2, 3, requires_grad=True), mask, keys)
    contexts = Contexts.from_encoding(encoded)
    np.testing.assert_array_equal(contexts.vectors, encoded.vectors.detach())
    np.testing.assert_array_equal(contexts.mask, mask)
    np.testing.assert_array_equal(contexts.keys.biases, keys.biases)
    assert (contexts.keys.heads, contexts.vectors.dtype) == (2, np.float32)
    assert Contexts.from_encoding(contexts) is contexts
    assert Contexts.from_encoding(ContextEncoding(torch.randn(2, 2, 3).bfloat16())).vectors.dtype == np.float32


def test_vectors_of_any_kind():
    values = [[1.0, 2.0], [3.0, 4.0]]
    for vectors in (values, np.array(values), torch.tensor(values), torch.tensor(values).half(), np.array(values, int)):
        np.testing.assert_array_equal(Contexts.from_encoding(vectors).vectors, np.array(values)[:, None])
    assert Contexts.from_encoding(np.array(values)).vectors.dtype == np.float64
    assert Contexts.from_encoding(np.ones((2, 3, 4), np.float16)).vectors.shape == (2, 3, 4)


@pytest.mark.parametrize("value", ["hello", [["a"]], [[1.0], [1.0, 2.0]], None])
def test_what_is_no_vector(value):
    with pytest.raises(InputError, match=r"contexts is .*; it must be vectors, \[contexts, dim\]"):
        Contexts.from_encoding(value)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (1, 2, 3, 4)])
def test_another_shape(shape):
    with pytest.raises(InputError, match=r"context vectors must be floating point \[batch, codes, dim\]"):
        Contexts.from_encoding(np.ones(shape, np.float32))


def test_some_of_them():
    contexts = Contexts(np.arange(12, dtype=np.float32).reshape(3, 2, 2), np.array([[1, 0], [1, 1], [0, 0]], bool))
    assert [len(codes) for codes in contexts.list_codes()] == [1, 2, 0]
    for positions in ([2, 0], slice(0, 2), range(1, 3)):
        selected = contexts.select(positions)
        rows = positions if isinstance(positions, slice) else [*positions]
        np.testing.assert_array_equal(selected.vectors, contexts.vectors[rows])
        np.testing.assert_array_equal(selected.mask, contexts.mask[rows])


def test_parts_are_padded():
    parts = [Contexts(np.ones((2, 3, 4), np.float32)), Contexts(np.ones((1, 1, 4), np.float32))]
    both = Contexts.concatenate(parts)
    assert both.mask.tolist() == [[True] * 3, [True] * 3, [True, False, False]]
    assert Contexts.concatenate(parts[:1]).mask is None
    assert stack_arrays([np.ones(2), np.ones(1)]).tolist() == [1, 1, 1]


def test_parts_with_keys_are_joined():
    keys = Keys(torch.randn(3, 4, 5), torch.randn(3, 4), heads=2)
    whole = Contexts.from_encoding(ContextEncoding(torch.randn(3, 4, 5), torch.ones(3, 4, dtype=torch.bool), keys))
    joined = Contexts.concatenate([whole.select([0]), whole.select(slice(1, 3))])
    np.testing.assert_array_equal(joined.keys.vectors, whole.keys.vectors)
    np.testing.assert_array_equal(joined.keys.biases, whole.keys.biases)
    assert joined.keys.heads == 2


def test_numbers_that_are_not_finite():
    vectors = np.ones((3, 2, 4), np.float32)
    vectors[1, 1, 0] = np.nan
    with pytest.raises(InputError, match="the vectors of context 1 are not finite"):
        check_finite(Contexts(vectors), dim=4)
    mask = np.ones((3, 2), bool)
    mask[1, 1] = False
    check_finite(Contexts(vectors, mask), dim=4)
    with pytest.raises(InputError, match="do not fit an index of dimension 5"):
        check_finite(Contexts(vectors, mask), dim=5)


def test_vectors_of_single_contexts_have_no_padding():
    """A graph computed the batch; a text without tokens has the vector of its padding."""
    ids, turns = [[5, 6, 7], [], [8]], [2, 1, 3]
    outputs = {name: np.random.default_rng(0).normal(size=(3, 3, 4)) for name in ("tokens", "turns")}
    outputs |= {"vector": np.arange(12.0).reshape(3, 4), "codes_mask": np.arange(3) < np.array(turns)[:, None]}
    contexts = ContextTokens.from_arrays(ids, outputs)
    assert [(len(context.tokens), len(context.turns)) for context in contexts] == [(3, 2), (1, 1), (1, 3)]
    for row, context in enumerate(contexts):
        np.testing.assert_array_equal(context.vector, outputs["vector"][row])
        np.testing.assert_array_equal(context.tokens, outputs["tokens"][row, : len(context.tokens)])
        np.testing.assert_array_equal(context.turns, outputs["turns"][row, : turns[row]])
        assert not any(np.shares_memory(array, whole) for array in context for whole in outputs.values())
