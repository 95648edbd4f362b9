"""`score` against the paper's formula, in two steps and one pair at a time."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from polyencoder.errors import ConfigError, InputError
from polyencoder.scoring import ContextEncoding, compute_attention_weights, exact, score, select_best
from polyencoder.scoring.exact import compute_chunk_sizes


def paper_score(vectors, mask, candidates, attention="basic"):
    """Section 4.4, literally: attend over the real codes, then multiply what comes out with the candidate."""
    scale = 1 / math.sqrt(vectors.size(2)) if attention == "sqrt" else 1
    rows = []
    for b, codes in enumerate(vectors):
        real = codes if mask is None else codes[mask[b]]
        for c in candidates if candidates.dim() == 2 else candidates[b]:
            weights = torch.softmax(torch.stack([c @ y for y in real]) * scale, dim=0)
            attended = torch.stack([w * y for w, y in zip(weights, real, strict=True)]).sum(dim=0)
            rows.append(attended @ c)
    return torch.stack(rows).view(len(vectors), -1)


def draw_mask(batch, codes):
    """Some codes masked, at least one real in each row."""
    mask = torch.rand(batch, codes) > 0.4
    mask[torch.arange(batch), torch.randint(codes, (batch,))] = True
    return mask


@st.composite
def cases(draw, dtype=torch.float32):
    """A context and candidates of some small shape: masked or not, shared or not."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    batch, n, codes, dim = (draw(st.integers(1, high)) for high in (4, 9, 6, 8))
    mask = draw_mask(batch, codes) if draw(st.booleans()) else None
    context = ContextEncoding(torch.randn(batch, codes, dim, dtype=dtype), mask)
    shape = (n, dim) if draw(st.booleans()) else (batch, n, dim)
    return context, torch.randn(shape, dtype=dtype)


attentions = st.sampled_from(["basic", "sqrt"])
budgets = st.sampled_from([1, 7, 40, 300, 2**23])


@pytest.mark.slow
@settings(deadline=None)
@given(cases(), attentions, budgets)
def test_equals_the_paper_whatever_the_shape_and_the_chunks(case, attention, budget):
    context, candidates = case
    expected = paper_score(context.vectors, context.mask, candidates, attention)
    with mock.patch.object(exact, "_CPU_ELEMENTS", budget):
        scores = score(context, candidates, attention=attention)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(cases(dtype=torch.float64), attentions)
def test_weights_are_the_softmax_over_real_codes(case, attention):
    context, candidates = case
    candidates = candidates if candidates.dim() == 2 else candidates[0]
    weights = compute_attention_weights(context, candidates, attention=attention)
    assert weights.shape == (context.batch_size, len(candidates), context.n_codes)
    scale = 1 / math.sqrt(context.dim) if attention == "sqrt" else 1
    for b, codes in enumerate(context.vectors):
        real = torch.ones(len(codes), dtype=torch.bool) if context.mask is None else context.mask[b]
        expected = torch.zeros(len(candidates), len(codes), dtype=torch.float64)
        expected[:, real] = torch.softmax(candidates @ codes[real].t() * scale, dim=1)
        torch.testing.assert_close(weights[b], expected)


@settings(deadline=None, max_examples=50)
@given(cases(dtype=torch.float64), attentions)
def test_gradients_equal_the_papers(case, attention):
    context, candidates = case
    vectors = context.vectors.requires_grad_()
    candidates.requires_grad_()
    expected = paper_score(vectors, context.mask, candidates, attention)
    upstream = torch.randn_like(expected)
    scores = score(context, candidates, attention=attention)
    for theirs, ours in zip(
        torch.autograd.grad(expected, (vectors, candidates), upstream),
        torch.autograd.grad(scores, (vectors, candidates), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_equal_finite_differences(shared):
    torch.manual_seed(0)
    vectors = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn((5, 4) if shared else (2, 5, 4), dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert torch.autograd.gradcheck(lambda y, c: score(ContextEncoding(y, mask), c), (vectors, candidates))


@settings(deadline=None)
@given(cases())
def test_lies_between_the_bounds_of_the_largest_logit(case):
    context, candidates = case
    shared = candidates.unsqueeze(0).expand(context.batch_size, -1, -1) if candidates.dim() == 2 else candidates
    logits = shared.double() @ context.vectors.double().transpose(1, 2)
    if context.mask is not None:
        logits = logits.masked_fill(~context.mask.unsqueeze(1), -torch.inf)
    largest = logits.amax(dim=2)
    scores = score(context, candidates).double()
    assert (scores <= largest + 1e-4).all()
    assert (scores >= largest - lambertw((context.n_codes - 1) / math.e).real - 1e-4).all()


def test_reaches_the_lower_bound():
    """One code leads the m - 1 others, which are equal, by 1 + W((m - 1) / e)."""
    others = 63
    gap = 1 + lambertw(others / math.e).real
    codes = torch.zeros(1, others + 1, 1, dtype=torch.float64)
    codes[0, 0] = gap
    scores = score(ContextEncoding(codes), torch.ones(1, 1, dtype=torch.float64))
    assert scores.item() == pytest.approx(gap - lambertw(others / math.e).real, abs=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_permuted_candidates_permute_the_scores(shared):
    context = ContextEncoding(torch.randn(3, 4, 8))
    candidates, order = torch.randn((7, 8) if shared else (3, 7, 8)), torch.randperm(7)
    permuted = candidates[order] if shared else candidates[:, order]
    torch.testing.assert_close(score(context, permuted), score(context, candidates)[:, order])


def test_permuted_codes_change_nothing():
    vectors, mask, candidates = torch.randn(3, 5, 8), draw_mask(3, 5), torch.randn(7, 8)
    order = torch.randperm(5)
    torch.testing.assert_close(
        score(ContextEncoding(vectors[:, order], mask[:, order]), candidates),
        score(ContextEncoding(vectors, mask), candidates),
    )


def test_the_same_code_twice_changes_nothing_if_all_are_doubled():
    vectors, candidates = torch.randn(2, 3, 8), torch.randn(4, 8)
    torch.testing.assert_close(
        score(ContextEncoding(vectors.repeat(1, 2, 1)), candidates), score(ContextEncoding(vectors), candidates)
    )


@pytest.mark.parametrize("garbage", [1e30, math.inf, math.nan])
@pytest.mark.parametrize("codes", [1, 4])
def test_what_masked_codes_hold_is_never_seen(garbage, codes):
    vectors = torch.randn(2, codes + 1, 8)
    mask = torch.ones(2, codes + 1, dtype=torch.bool)
    mask[:, -1] = False
    expected = score(ContextEncoding(vectors[:, :-1].clone()), candidates := torch.randn(5, 8))
    vectors[:, -1] = garbage
    vectors.requires_grad_()
    candidates.requires_grad_()
    scores = score(ContextEncoding(vectors, mask), candidates)
    torch.testing.assert_close(scores, expected)
    scores.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()
    assert (vectors.grad[:, -1] == 0).all()
    assert candidates.grad is not None
    assert candidates.grad.isfinite().all()


@pytest.mark.parametrize("codes", [1, 3])
def test_a_context_without_real_codes_scores_zero_with_zero_gradient(codes):
    vectors, candidates = torch.randn(2, codes, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    mask = torch.zeros(2, codes, dtype=torch.bool)
    scores = score(ContextEncoding(vectors, mask), candidates)
    assert torch.equal(scores, torch.zeros(2, 5))
    scores.sum().backward()
    assert torch.equal(vectors.grad, torch.zeros_like(vectors))
    assert torch.equal(candidates.grad, torch.zeros_like(candidates))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
@pytest.mark.parametrize("codes", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_no_candidates(shape, codes, training):
    context = ContextEncoding(torch.randn(2, codes, 8, requires_grad=training))
    assert score(context, torch.empty(shape)).shape == (2, 0)


def test_an_empty_batch():
    assert score(ContextEncoding(torch.empty(0, 3, 8)), torch.randn(5, 8)).shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_low_precision_rounds_the_logits_alone(dtype, training):
    """Against fp32 scores of the same rounded vectors: a logit near 8 is off by at most half of 1/32 (bf16)."""
    torch.manual_seed(0)
    vectors, candidates = torch.randn(2, 16, 32).to(dtype), torch.randn(9, 32).to(dtype)
    scores = score(ContextEncoding(vectors.requires_grad_(training)), candidates)
    assert scores.dtype == torch.float32
    exact = score(ContextEncoding(vectors.detach().float()), candidates.float())
    torch.testing.assert_close(scores.detach(), exact, rtol=2**-6, atol=0.05)


def test_two_dtypes_meet_in_the_wider():
    vectors, candidates = torch.randn(2, 4, 8), torch.randn(5, 8).bfloat16()
    torch.testing.assert_close(
        score(ContextEncoding(vectors), candidates), score(ContextEncoding(vectors), candidates.float())
    )


def test_autocast_keeps_the_softmax_in_fp32():
    vectors, candidates = torch.randn(2, 4, 8, requires_grad=True), torch.randn(5, 8)
    exact = score(ContextEncoding(vectors), candidates)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score(ContextEncoding(vectors), candidates)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, exact, rtol=2**-6, atol=0.05)


def test_huge_logits_neither_overflow_nor_lose_the_score():
    context = ContextEncoding(torch.tensor([[[3e4], [-3e4], [2e4]]]))
    torch.testing.assert_close(score(context, torch.tensor([[1.0], [-1.0]])), torch.tensor([[3e4, 3e4]]))


def test_views_score_like_copies():
    vectors, candidates = torch.randn(8, 4, 3).permute(2, 1, 0), torch.randn(8, 14)[:, ::2].t()
    torch.testing.assert_close(
        score(ContextEncoding(vectors), candidates),
        score(ContextEncoding(vectors.contiguous()), candidates.contiguous()),
    )
    expanded = candidates.unsqueeze(0).expand(3, -1, -1)
    torch.testing.assert_close(score(ContextEncoding(vectors), expanded), score(ContextEncoding(vectors), candidates))


@settings(deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 3000), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(1, 10**6)
)
def test_chunks_stay_within_their_budget(batch, n, codes, shared, low_precision, budget):
    context = ContextEncoding(torch.empty(1, 1, 16).expand(batch, codes, 16))
    candidates = torch.empty(1, dtype=torch.bfloat16 if low_precision else torch.float32)
    candidates = candidates.expand(*(() if shared else (batch,)), n, 16)
    contexts_at_once, at_once = compute_chunk_sizes(context, candidates, budget=budget)
    assert 1 <= contexts_at_once <= batch
    assert 1 <= at_once <= n
    copied = 0 if not low_precision else at_once * 16 * (1 if shared else contexts_at_once)
    assert contexts_at_once * at_once * codes * 4 + copied <= budget or contexts_at_once == at_once == 1


@pytest.mark.parametrize(
    "candidates",
    [torch.zeros(8), torch.zeros(5, 7), torch.zeros(3, 5, 8), torch.zeros(2, 5, 8, 1), torch.zeros(5, 8).long()],
)
def test_candidates_that_do_not_fit_are_refused(candidates):
    with pytest.raises(InputError, match=r"\[n, 8\] or \[2, n, 8\]"):
        score(ContextEncoding(torch.zeros(2, 3, 8)), candidates)


def test_unknown_attention_is_refused():
    with pytest.raises(ConfigError, match="attention is 'cosine'; it must be one of basic, sqrt, multihead"):
        score(ContextEncoding(torch.zeros(2, 3, 8)), torch.zeros(5, 8), attention="cosine")


@pytest.mark.parametrize("shape", [(7,), (1, 5), (3, 100), (2, 5000)])
@pytest.mark.parametrize("different", [1, 3, 10**6])
def test_the_order_is_that_of_a_stable_sort(shape, different):
    scores = torch.randint(different, shape).float()
    values, columns = scores.sort(dim=-1, descending=True, stable=True)
    for k in (1, 2, 5, shape[-1] + 1):
        best, positions = select_best(scores, k)
        assert torch.equal(best, values[..., :k])
        assert torch.equal(positions, columns[..., :k])


def test_a_score_that_is_nan_comes_last():
    values, columns = select_best(torch.tensor([[torch.nan, 1.0, torch.nan, 2.0]]), 3)
    assert columns.tolist() == [[3, 1, 0]]
    assert values.tolist() == [[2.0, 1.0, -torch.inf]]


def test_infinite_scores_keep_their_places():
    values, columns = select_best(torch.tensor([-torch.inf, 0.0, torch.inf, -1.0]), 4)
    assert columns.tolist() == [2, 1, 3, 0]
    assert values.tolist() == [torch.inf, 0.0, -1.0, -torch.inf]
