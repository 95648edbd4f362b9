"""`search` of the files of an index against all scores, naively, of the vectors as they are stored."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.vectors import Vectors, quantize, write_vectors
from polyencoder.scoring import ContextEncoding, search

DTYPES = ["float32", "float16", "bfloat16", "int8"]


@pytest.fixture(scope="module")
def make_vectors(tmp_path_factory):
    def make(vectors, *, dtype="float32", files=3):
        """Store vectors [n, dim] in up to `files` files of different sizes."""
        folder = tmp_path_factory.mktemp("index")
        cuts = sorted({0, *torch.randint(len(vectors), (files - 1,)).tolist(), len(vectors)})
        names = [
            write_vectors(folder, start, *quantize(vectors[start:stop], dtype)).name for start, stop in pairwise(cuts)
        ]
        return Vectors.open(folder, names, dim=vectors.size(1), dtype=dtype)

    return make


def naive(contexts, vectors, *, attention="basic", allowed=None):
    """Attend, multiply, sort everything: [batch, n] scores and rows, best first."""
    stored, scales = vectors.stored(torch.arange(len(vectors)))
    stored = stored.double() if scales is None else stored.double() * scales.double().unsqueeze(1)
    logits = torch.einsum("bcd,nd->bnc", contexts.vectors.double(), stored)
    weights = logits / stored.size(1) ** 0.5 if attention == "sqrt" else logits.clone()
    if contexts.mask is not None:
        weights = weights.masked_fill(~contexts.mask.unsqueeze(1), -torch.inf)
    attended = torch.einsum("bnc,bcd->bnd", weights.softmax(-1), contexts.vectors.double())
    scores = (attended * stored).sum(-1)
    if allowed is not None:
        scores[:, ~allowed] = -torch.inf
    return scores.sort(dim=1, descending=True, stable=True)


def draw_contexts(batch, codes, dim, *, masked=False):
    mask = None
    if masked:
        mask = torch.rand(batch, codes) > 0.3
        mask[:, 0] = True
    return ContextEncoding(torch.randn(batch, codes, dim, dtype=torch.float64), mask)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 70),
    st.integers(1, 5),
    st.sampled_from(DTYPES),
    st.sampled_from(["basic", "sqrt"]),
    st.sampled_from([None, 1, 40, 300]),
    st.sampled_from([None, 0.1, 0.8, 1.0]),
    st.booleans(),
)
def test_equals_the_naive_ranking(make_vectors, seed, batch, n, codes, dtype, attention, max_elements, share, masked):
    torch.manual_seed(seed)
    vectors = make_vectors(torch.randn(n, 8), dtype=dtype)
    contexts = draw_contexts(batch, codes, 8, masked=masked)
    allowed = None if share is None else torch.rand(n) < share
    available = n if allowed is None else int(allowed.sum())
    assume(available)
    k = int(torch.randint(1, available + 1, ()))
    scores, rows = search(contexts, vectors, k=k, allowed=allowed, attention=attention, max_elements=max_elements)
    expected, order = naive(contexts, vectors, attention=attention, allowed=allowed)
    assert torch.equal(rows, order[:, :k])
    torch.testing.assert_close(scores, expected[:, :k])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp32_contexts_get_fp32_scores(make_vectors, dtype):
    torch.manual_seed(0)
    vectors, contexts = make_vectors(torch.randn(500, 16), dtype=dtype), draw_contexts(3, 4, 16)
    for context_dtype in (torch.float32, torch.bfloat16):
        low = contexts.to(dtype=context_dtype)
        found = search(low, vectors, k=10)
        assert found.scores.dtype == torch.float32
        expected, _ = naive(low, vectors)
        torch.testing.assert_close(found.scores.double(), expected[:, :10], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_bf16_pass_is_scored_again_in_full(make_vectors, dtype, filtered):
    torch.manual_seed(0)
    vectors, contexts = make_vectors(torch.randn(3000, 16), dtype=dtype), draw_contexts(5, 8, 16)
    allowed = torch.rand(3000) < 0.7 if filtered else None
    exact = search(contexts, vectors, k=10, allowed=allowed)
    found = search(contexts, vectors, k=10, allowed=allowed, compute_dtype=torch.bfloat16)
    assert torch.equal(found.indices, exact.indices)
    torch.testing.assert_close(found.scores, exact.scores)


def test_permuting_rows_permutes_results(make_vectors):
    torch.manual_seed(0)
    values, contexts = torch.randn(200, 8), draw_contexts(3, 4, 8)
    order = torch.randperm(200)
    found = search(contexts, make_vectors(values), k=20)
    permuted = search(contexts, make_vectors(values[order]), k=20)
    assert torch.equal(order[permuted.indices], found.indices)


def test_of_equal_scores_the_lowest_row_comes_first(make_vectors):
    vectors = make_vectors(torch.ones(50, 4))
    allowed = torch.arange(50) % 3 == 1
    found = search(draw_contexts(2, 3, 4), vectors, k=6, allowed=allowed, max_elements=60)
    assert found.indices.tolist() == [[1, 4, 7, 10, 13, 16]] * 2


def test_nan_comes_last_but_is_found(make_vectors, tmp_path):
    values = torch.randn(6, 4)
    values[2] = torch.nan
    vectors = Vectors.open(tmp_path, [write_vectors(tmp_path, 0, values).name], dim=4, dtype="float32")
    found = search(draw_contexts(1, 2, 4), vectors, k=4, allowed=torch.tensor([True, True, True, False, True, False]))
    assert found.indices[0, -1] == 2
    assert sorted(found.indices[0].tolist()) == [0, 1, 2, 4]


def test_more_than_are_allowed_are_refused(make_vectors):
    with pytest.raises(InputError, match="allowed candidates, 0; got 3"):
        search(draw_contexts(2, 2, 4), make_vectors(torch.randn(5, 4)), k=3, allowed=torch.zeros(5).bool())


def test_an_empty_batch(make_vectors):
    found = search(draw_contexts(0, 2, 4), make_vectors(torch.randn(5, 4)), k=3)
    assert found.scores.shape == found.indices.shape == (0, 3)


def test_a_context_without_codes_scores_zero(make_vectors):
    contexts = ContextEncoding(torch.randn(1, 2, 4), torch.zeros(1, 2, dtype=torch.bool))
    found = search(contexts, make_vectors(torch.randn(5, 4)), k=2)
    assert found.scores.tolist() == [[0, 0]]
    assert found.indices.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be between 1 and the number of candidates, 5; got 0"),
        ({"k": 1, "allowed": torch.ones(4, dtype=torch.bool)}, r"allowed must be torch.bool \[5\]"),
        ({"k": 1, "allowed": torch.ones(5)}, "got torch.float32"),
        ({"k": 1, "attention": "multihead"}, "attention is 'multihead', but the contexts have no keys"),
    ],
)
def test_bad_input_is_refused(make_vectors, settings, message):
    with pytest.raises(InputError, match=message):
        search(draw_contexts(1, 2, 4), make_vectors(torch.randn(5, 4)), **settings)


def test_contexts_of_another_dimension_are_refused(make_vectors):
    with pytest.raises(InputError, match="candidates of dimension 4"):
        search(draw_contexts(1, 2, 8), make_vectors(torch.randn(5, 4)), k=1)
