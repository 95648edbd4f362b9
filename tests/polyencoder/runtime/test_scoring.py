"""Scores in numpy: those of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder import InputError
from polyencoder.runtime.scoring import Contexts, best, score
from polyencoder.scoring import ContextEncoding, Keys
from polyencoder.scoring import best as torch_best
from polyencoder.scoring import score as torch_score


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["basic", "sqrt", "multihead"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_scores_of_torch(n_contexts, codes, n, attention, masked, seed):
    heads = 2 if attention == "multihead" else 1
    generator = torch.Generator().manual_seed(seed)
    vectors, keys = 3 * torch.randn(2, n_contexts, heads * codes, 8, generator=generator)
    biases = torch.randn(n_contexts, heads * codes, generator=generator)
    mask = None
    if masked:  # perhaps all codes of a context
        mask = torch.rand(n_contexts, codes, generator=generator).round().bool().repeat_interleave(heads, dim=1)
    candidates = torch.randn(n, 8, generator=generator)
    with_keys = attention == "multihead"
    expected = torch_score(
        ContextEncoding(vectors, mask, Keys(keys, biases, heads) if with_keys else None),
        candidates,
        attention=attention,
    )
    contexts = Contexts(
        vectors.numpy(),
        None if mask is None else mask.numpy(),
        keys.numpy() if with_keys else None,
        biases.numpy() if with_keys else None,
    )
    found = score(contexts, candidates.numpy(), attention=attention, heads=heads)
    assert (found.dtype, len(contexts)) == (np.float32, n_contexts)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(st.lists(st.integers(-2, 2), min_size=1), st.integers(1, 9))
def test_equal_scores_stay_in_order(scores, k):
    _, expected = torch_best(torch.tensor([scores], dtype=torch.float32), k)
    assert best(np.array(scores, dtype=np.float32), k).tolist() == expected[0].tolist()


def test_a_nan_is_an_error():
    with pytest.raises(InputError, match="the model's scores are nan"):
        best(np.array([1.0, np.nan]), 2)
