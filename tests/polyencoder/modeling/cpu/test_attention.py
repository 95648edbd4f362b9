"""Attention with dropout is what its definition says, and each kernel is where it is the fastest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polyencoder.modeling.cpu.attention import apply_attention, attend_by_heads
from polyencoder.modeling.cpu.modules import draw
from polyencoder.modeling.loading import build_backbone
from polyencoder.text import TokenBatch

BATCH, HEADS, LENGTH, DIM = 2, 3, 5, 4


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, DIM, dtype=dtype, requires_grad=True) for _ in range(3)]


def masks():
    keys = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    keys[0, ..., 3:] = False
    return {
        "none": None,
        "keys": keys,
        "pairs": keys.expand(BATCH, 1, LENGTH, LENGTH),
        "added": torch.randn(LENGTH, LENGTH),
    }


def by_the_book(query, key, value, mask, *, p, scale):
    """In plain operations, with torch's own gradients, and the same weights dropped."""
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30) if mask.dtype == torch.bool else scores + mask
    bits = draw((scores.size(0) * scores.size(1), *scores.shape[2:])).view(scores.shape).int() + 2**15
    return (scores.softmax(-1) * (bits >= round(p * 2**16)) / (1 - round(p * 2**16) / 2**16)) @ value


@pytest.mark.parametrize("cached", [1, 60, 2**17])
@pytest.mark.parametrize("name", ["none", "keys", "pairs", "added"])
@pytest.mark.parametrize("options", [{"p": 0.3, "scale": None}, {"p": 0.1, "scale": 0.3}])
def test_dropout_by_the_book_with_gradients(monkeypatch, name, options, cached):
    """Whether one head goes through at a time, a few or all of them."""
    monkeypatch.setattr("polyencoder.modeling.cpu.attention.CACHED", cached)
    mask, results = masks()[name], []
    for ours in (True, False):
        query, key, value = tensors = inputs()
        torch.manual_seed(3)
        if ours:
            output = attend_by_heads(query, key, value, attn_mask=mask, dropout_p=options["p"], scale=options["scale"])
        else:
            output = by_the_book(query, key, value, mask, **options)
        output.square().sum().backward()
        results.append([output, *(tensor.grad for tensor in tensors)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert float((results[0][0] == 0).float().mean()) < 0.2


def test_dropout_of_rows_as_models_have_them():
    """Views of [batch, length, heads, dim], with gradients that are views as well, and one sequence alone."""
    for batch in (1, 2):
        torch.manual_seed(0)
        rows = [torch.randn(batch, LENGTH, HEADS, DIM, requires_grad=True) for _ in range(3)]
        results = []
        for ours in (True, False):
            views = [row.transpose(1, 2) for row in rows]
            torch.manual_seed(3)
            output = attend_by_heads(*views, dropout_p=0.5) if ours else by_the_book(*views, None, p=0.5, scale=None)
            weights = torch.arange(float(DIM))
            results.append([output, *torch.autograd.grad((output.transpose(1, 2) @ weights).square().sum(), rows)])
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_what_learns_nothing_gets_no_gradient():
    query, key, value = inputs()
    with torch.no_grad():
        assert attend_by_heads(query, key, value, dropout_p=0.5).grad_fn is None
    attend_by_heads(query, key.detach(), value.detach(), dropout_p=0.5).sum().backward()
    assert query.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_that_learns_gets_its_gradient(dtype):
    bias = torch.zeros(HEADS, LENGTH, LENGTH, requires_grad=True)
    apply_attention(*inputs(dtype), bias, dropout_p=0.1).sum().backward()
    assert bias.grad is not None
    assert bias.grad.norm() > 0


@pytest.mark.parametrize("cached", [1, 60, 80, 2**17])  # one head at a time, two, three, all
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("name", ["none", "keys", "pairs"])
def test_a_bias_of_all_sequences_by_the_book_with_its_gradient(monkeypatch, name, p, cached):
    monkeypatch.setattr("polyencoder.modeling.cpu.attention.CACHED", cached)
    mask, heads = masks()[name], 4 if cached == 60 else HEADS
    results = []
    for ours in (True, False):
        torch.manual_seed(0)
        tensors = [torch.randn(BATCH, heads, LENGTH, DIM, requires_grad=True) for _ in range(3)]
        bias = torch.randn(heads, LENGTH, LENGTH, requires_grad=True)
        torch.manual_seed(3)
        if ours:
            output = apply_attention(*tensors, attn_mask=mask, dropout_p=p, bias=bias)
        else:
            added = bias if mask is None else bias.masked_fill(~mask, -1e30)
            output = by_the_book(*tensors, added, p=p, scale=None)
        output.square().sum().backward()
        results.append([output, *(tensor.grad for tensor in (*tensors, bias))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["none", "keys", "pairs"])
def test_a_frozen_bias_takes_torchs_kernel(monkeypatch, name):
    tensors, bias, mask = inputs(), torch.randn(HEADS, LENGTH, LENGTH), masks()[name]
    expected = by_the_book(*tensors, bias if mask is None else bias.masked_fill(~mask, -1e30), p=0.0, scale=None)
    monkeypatch.setattr("polyencoder.modeling.cpu.attention.attend_by_heads", None)
    torch.testing.assert_close(apply_attention(*tensors, attn_mask=mask, bias=bias), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, HEADS, LENGTH, DIM), (BATCH, HEADS, 0, DIM), (1, 1, 1, 1)])
def test_dropout_of_nothing_or_little(shape):
    query = torch.ones(shape, requires_grad=True)
    output = attend_by_heads(query, query, query, dropout_p=0.5)
    output.sum().backward()
    assert output.shape == query.grad.shape == shape


@pytest.mark.parametrize("p", [1e-9, 1.0])
def test_nothing_to_decide(p):
    tensors = inputs()
    output = apply_attention(*tensors, dropout_p=p)
    assert torch.allclose(output, torch.zeros(()) if p == 1 else F.scaled_dot_product_attention(*tensors), atol=1e-6)


def test_a_query_that_may_go_nowhere():
    query, key, value = inputs()
    mask = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    mask[0] = False
    output = attend_by_heads(query, key, value, attn_mask=mask, dropout_p=0.2)
    output.sum().backward()
    assert all(bool(tensor.isfinite().all()) for tensor in (output, query.grad, key.grad, value.grad))


def test_learning_in_bfloat16_gives_the_gradients_of_float32(make_backbone_config):
    torch.manual_seed(0)
    backbone = build_backbone(make_backbone_config() | {"initializer_range": 0.1})
    ids = torch.randint(5, 20, (4, 9))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 5:] = False
    gradients = []
    for enabled in (False, True):
        backbone.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outputs = backbone(TokenBatch(ids, mask))
        outputs.float()[mask].square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in backbone.parameters() if p.grad is not None]))
    cosine = F.cosine_similarity(*gradients, dim=0)
    assert cosine > 0.99


# ---- which one


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_which_kernel_in_which_type(monkeypatch, learning, dtype, dropout_p):
    calls, flash = [], F.scaled_dot_product_attention

    def counted(name, kernel):
        return lambda *tensors, **options: calls.append((name, tensors[0].dtype)) or kernel(*tensors, **options)

    kernel = "polyencoder.modeling.cpu.attention.attend_by_heads"
    monkeypatch.setattr(kernel, counted("ours", attend_by_heads))
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted("flash", flash))
    with torch.set_grad_enabled(learning), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = apply_attention(*inputs(dtype), dropout_p=dropout_p)
    assert output.dtype == dtype
    assert calls == [("ours", dtype) if dropout_p else ("flash", torch.float32 if learning else dtype)]


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("name", ["none", "keys", "pairs", "added"])
def test_learning_in_bfloat16_is_that_of_float32_but_for_rounding(name, dropout_p):
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [tensor.detach().bfloat16().to(dtype).requires_grad_() for tensor in inputs()]
        mask = masks()[name]
        mask = mask.to(dtype) if name == "added" else mask
        torch.manual_seed(3)
        output = apply_attention(*tensors, attn_mask=mask, dropout_p=dropout_p)
        output.float().square().sum().backward()
        results.append([output.float(), *(tensor.grad.float() for tensor in tensors)])
    for exact, rounded in zip(*results, strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.05)
