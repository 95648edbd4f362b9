"""Plain attention equals torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polyencoder.modeling.cpu.attention import attention, plain_attention
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


@pytest.mark.parametrize("name", ["none", "keys", "pairs", "added"])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}])
def test_equals_torch_with_gradients(name, options):
    results = []
    for function in (F.scaled_dot_product_attention, plain_attention):
        tensors = inputs()
        output = function(*tensors, attn_mask=masks()[name], **options)
        output.square().sum().backward()
        results.append([output, *(tensor.grad for tensor in tensors)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_query_that_may_go_nowhere():
    query, key, value = inputs()
    mask = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    mask[0] = False
    output = plain_attention(query, key, value, attn_mask=mask)
    output.sum().backward()
    assert all(bool(tensor.isfinite().all()) for tensor in (output, query.grad, key.grad, value.grad))


def test_dropout_takes_out_weights_and_keeps_their_sum():
    query, key, _ = inputs()
    torch.manual_seed(0)
    many = torch.stack([plain_attention(query, key, torch.ones_like(query), dropout_p=0.5) for _ in range(2000)])
    assert many.std(0).min() > 0.1
    torch.testing.assert_close(many.mean(0), torch.ones_like(query), rtol=0, atol=0.1)


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

    monkeypatch.setattr("polyencoder.modeling.cpu.attention.plain_attention", counted("plain", plain_attention))
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted("flash", flash))
    with torch.set_grad_enabled(learning), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = attention(*inputs(dtype), dropout_p=dropout_p)
    assert output.dtype == dtype
    assert calls == [("plain", dtype) if dropout_p else ("flash", torch.float32 if learning else dtype)]


@pytest.mark.parametrize("name", ["none", "keys", "pairs", "added"])
def test_learning_in_bfloat16_is_that_of_float32_but_for_rounding(name):
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [tensor.detach().bfloat16().to(dtype).requires_grad_() for tensor in inputs()]
        mask = masks()[name]
        mask = mask.to(dtype) if name == "added" else mask
        output = attention(*tensors, attn_mask=mask)
        output.float().square().sum().backward()
        results.append([output.float(), *(tensor.grad.float() for tensor in tensors)])
    for exact, rounded in zip(*results, strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.05)
