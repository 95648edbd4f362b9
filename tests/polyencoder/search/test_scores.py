"""Scores in numpy: those of torch."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.modeling.multihead import CandidateAttention
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring import score as torch_score
from polyencoder.search.contexts import Contexts
from polyencoder.search.scores import score

pytestmark = pytest.mark.slow


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["basic", "sqrt"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_scores_of_torch(n_contexts, codes, n, attention, masked, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = 3 * torch.randn(n_contexts, codes, 8, generator=generator)
    mask = None
    if masked:  # perhaps all codes of a context
        mask = torch.rand(n_contexts, codes, generator=generator).round().bool()
    candidates = torch.randn(n, 8, generator=generator)
    expected = torch_score(ContextEncoding(vectors, mask), candidates, attention=attention)
    contexts = Contexts(vectors.numpy(), None if mask is None else mask.numpy())
    scores = score(contexts, candidates.numpy(), attention=attention)
    assert (scores.dtype, len(contexts)) == (np.float32, n_contexts)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 1000))
def test_the_scores_of_torch_under_multi_head_attention(codes, heads, masked, seed):
    torch.manual_seed(seed)
    mask = torch.rand(3, codes) < 0.7 if masked else None
    with torch.no_grad():
        encoded = CandidateAttention(8, heads)(ContextEncoding(torch.randn(3, codes, 8), mask))
    candidates = torch.randn(5, 8)
    expected = torch_score(encoded, candidates, attention="multihead")
    scores = score(Contexts.from_encoding(encoded), candidates.numpy(), attention="multihead")
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_contexts_and_attention_must_fit():
    plain, candidates = torch.ones(2, 3, 4), np.ones((5, 4), np.float32)
    with torch.no_grad():
        keyed = Contexts.from_encoding(CandidateAttention(4, 2)(ContextEncoding(plain)))
    with pytest.raises(InputError, match="'multihead', but the contexts have no keys"):
        score(Contexts.from_encoding(plain), candidates, attention="multihead")
    with pytest.raises(InputError, match="'basic', but the contexts have keys"):
        score(keyed, candidates)


def test_many_contexts_need_no_more_memory():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(64, 32, 4)).astype(np.float32)
    candidates = random.normal(size=(4096, 4)).astype(np.float32)
    tracemalloc.start()
    try:
        scores = score(Contexts(vectors, np.ones((64, 32), dtype=bool)), candidates)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20  # the logits of all are 32 MB, and computed in several steps
    expected = np.concatenate([score(Contexts(codes[None]), candidates) for codes in vectors])
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
