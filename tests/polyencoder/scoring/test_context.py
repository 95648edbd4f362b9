from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import multi_head_attention_forward

from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.multihead import CandidateAttention
from polyencoder.scoring import ContextEncoding, Keys, compute_attention_weights, exact, score
from polyencoder.scoring.context import stack_contexts
from polyencoder.scoring.exact import compute_chunk_sizes
from polyencoder.scoring.tokens import Texts


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
    selections = ((slice(1, 3), [1, 2]), (torch.tensor([3, 0]), [3, 0]), (2, [2]), (-1, [3]))
    for rows, expected in (*selections, ([3, 0], [3, 0]), (range(1, 3), [1, 2]), ([2], [2]), ([], [])):
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
    first, second = ContextEncoding(torch.ones(1, 2, 3)), ContextEncoding(torch.ones(2, 4, 3))
    masked = ContextEncoding(torch.ones(1, 4, 3), torch.tensor([[True, True, False, False]]))
    together = stack_contexts([first, second, masked])
    assert together.vectors.shape == (4, 4, 3)
    assert together.mask.sum(1).tolist() == [2, 4, 4, 2]
    assert stack_contexts([second, second]).mask is None


@pytest.mark.parametrize("masked", [False, True])
def test_batches_that_are_put_into_an_empty_one(masked):
    def draw(batch, codes):
        keys = Keys(torch.randn(batch, codes, 3), torch.randn(batch, codes), heads=1)
        mask = torch.ones(batch, codes, dtype=torch.bool) if masked else None
        texts = [Texts(torch.randn(1, 3), *torch.randn(3, 1, 2, 3)) for _ in range(batch)]
        return ContextEncoding(torch.randn(batch, codes, 3), mask, keys, texts)

    long, short = draw(2, 4), draw(1, 2)
    whole = long.build_empty(3)
    whole.put(torch.tensor([2, 0]), long)
    whole.put(torch.tensor([1]), short)
    padded = short.pad_codes(4)
    for row, (part, position) in enumerate([(long, 1), (padded, 0), (long, 0)]):
        assert whole.tokens[row] is part.tokens[position]
        for ours, theirs in zip(whole._list_tensors(), part._list_tensors(), strict=True):
            assert ours[row].equal(theirs[position])
    assert not padded.vectors[:, 2:].any()


DIM = 12


def drawn(heads, *, dtype=torch.float64):
    """Projections whose weights and biases are all random."""
    attention = CandidateAttention(DIM, heads).to(dtype)
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return attention


def define(attention, codes, mask, candidates):
    """Scores and weights by torch's own multi-head attention, of each candidate over each context."""
    batch = len(codes)
    queries = candidates.expand(batch, *candidates.shape[-2:])
    inputs = (attention.query, attention.key, attention.value)
    attended, weights = multi_head_attention_forward(
        queries.transpose(0, 1),
        codes.transpose(0, 1),
        codes.transpose(0, 1),
        embed_dim_to_check=DIM,
        num_heads=attention.heads,
        in_proj_weight=torch.cat([linear.weight for linear in inputs]),
        in_proj_bias=torch.cat([linear.bias for linear in inputs]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=attention.output.weight,
        out_proj_bias=attention.output.bias,
        key_padding_mask=None if mask is None else ~mask,
    )
    return (attended.transpose(0, 1) * queries).sum(-1), weights


@st.composite
def cases(draw):
    torch.manual_seed(draw(st.integers(0, 10**6)))
    batch, n, codes = (draw(st.integers(1, high)) for high in (4, 9, 6))
    mask = None
    if draw(st.booleans()):
        mask = torch.rand(batch, codes) > 0.4
        mask[torch.arange(batch), torch.randint(codes, (batch,))] = True
    shape = (n, DIM) if draw(st.booleans()) else (batch, n, DIM)
    vectors = torch.randn(batch, codes, DIM, dtype=torch.float64)
    return (
        ContextEncoding(vectors, mask),
        torch.randn(shape, dtype=torch.float64),
        drawn(draw(st.sampled_from([1, 2, 6]))),
    )


@pytest.mark.slow
@settings(deadline=None)
@given(cases(), st.sampled_from([1, 7, 40, 300, 2**23]))
def test_equals_the_definition_whatever_the_shape_and_the_chunks(case, budget):
    codes, candidates, attention = case
    with torch.no_grad(), mock.patch.object(exact, "_CPU_ELEMENTS", budget):
        expected, _ = define(attention, codes.vectors, codes.mask, candidates)
        scores = score(attention(codes), candidates, attention="multihead")
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(cases())
def test_weights_equal_the_definitions(case):
    codes, candidates, attention = case
    candidates = candidates if candidates.dim() == 2 else candidates[0]
    with torch.no_grad():
        _, expected = define(attention, codes.vectors, codes.mask, candidates)
        weights = compute_attention_weights(attention(codes), candidates, attention="multihead")
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(cases())
def test_gradients_equal_the_definitions(case):
    codes, candidates, attention = case
    inputs = [codes.vectors.requires_grad_(), candidates.requires_grad_(), *attention.parameters()]
    expected, _ = define(attention, codes.vectors, codes.mask, candidates)
    upstream = torch.randn_like(expected)
    actual = score(attention(codes), candidates, attention="multihead")
    pairs = (torch.autograd.grad(scores, inputs, upstream) for scores in (expected, actual))
    for theirs, ours in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_what_is_masked_counts_nothing():
    attention, candidates = drawn(2), torch.randn(5, DIM, dtype=torch.float64)
    vectors, mask = torch.randn(2, 4, DIM, dtype=torch.float64), torch.tensor([[True] * 4, [True, True, False, False]])
    other = vectors.clone()
    other[1, 2:] = 1e6
    with torch.no_grad():
        scores = [
            score(attention(ContextEncoding(v, mask)), candidates, attention="multihead") for v in (vectors, other)
        ]
        alone = score(attention(ContextEncoding(vectors[1:, :2])), candidates, attention="multihead")
    torch.testing.assert_close(scores[0], scores[1])
    torch.testing.assert_close(scores[0][1:], alone)


def test_contexts_of_different_batches_together():
    """Short contexts beside long ones, as gradient caching and evaluation put them."""
    attention, candidates = drawn(3), torch.randn(5, DIM, dtype=torch.float64)
    parts = [ContextEncoding(torch.randn(2, m, DIM, dtype=torch.float64), torch.ones(2, m).bool()) for m in (4, 1)]
    with torch.no_grad():
        encoded = [attention(part) for part in parts]
        expected = torch.cat([score(part, candidates, attention="multihead") for part in encoded])
        together = stack_contexts(encoded)
        torch.testing.assert_close(score(together, candidates, attention="multihead"), expected)
        single = together.select(1).to(dtype=torch.float32)
        assert single.keys.vectors.dtype == torch.float32
        torch.testing.assert_close(
            score(single, candidates.float(), attention="multihead"), expected[1:2].float(), rtol=1e-4, atol=1e-4
        )


def test_a_budget_counts_keys_too():
    candidates, context = torch.zeros(1000, DIM), ContextEncoding(torch.zeros(3, 8, DIM))
    with_keys = drawn(1, dtype=torch.float32)(context)
    plain, keyed = (compute_chunk_sizes(encoding, candidates, budget=10_000) for encoding in (context, with_keys))
    assert keyed[0] * keyed[1] <= plain[0] * plain[1] / 2 + keyed[0]
    assert keyed == compute_chunk_sizes(ContextEncoding(torch.zeros(3, 16, DIM)), candidates, budget=10_000)


def test_it_begins_near_attention_without_weights():
    """With one head its scores are then those of "sqrt"."""
    codes, candidates = ContextEncoding(torch.randn(2, 4, DIM)), torch.randn(5, DIM)
    with torch.no_grad():
        scores = score(CandidateAttention(DIM, 1)(codes), candidates, attention="multihead")
    torch.testing.assert_close(scores, score(codes, candidates, attention="sqrt"), rtol=1e-4, atol=1e-5)


def test_contexts_and_attention_must_fit():
    codes = ContextEncoding(torch.zeros(2, 3, DIM))
    with pytest.raises(InputError, match="'multihead', but the contexts have no keys"):
        score(codes, torch.zeros(5, DIM), attention="multihead")
    with pytest.raises(InputError, match="'basic', but the contexts have keys"):
        score(CandidateAttention(DIM, 2)(codes), torch.zeros(5, DIM))
    with pytest.raises(InputError, match="are not those of 2 heads"):
        Keys(torch.zeros(2, 3, DIM), torch.zeros(2, 3), 2)
    with pytest.raises(InputError, match="are not those of 0 heads"):
        Keys(torch.zeros(2, 3, DIM), torch.zeros(2, 3), 0)
    with pytest.raises(InputError, match="must have their shape"):
        ContextEncoding(torch.zeros(2, 3, DIM), None, Keys(torch.zeros(2, 6, DIM), torch.zeros(2, 6), 2))
    with pytest.raises(ConfigError, match="poly_attention_heads is 5; the encoder's dimension, 12, must be a multiple"):
        CandidateAttention(DIM, 5)
