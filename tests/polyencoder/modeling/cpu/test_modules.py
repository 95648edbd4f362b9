"""Modules of ours take the place of torch's, with the same parameters under the same names."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from polyencoder.modeling.cpu import modules, products
from polyencoder.modeling.cpu.dropout import CpuDropout, dropout
from polyencoder.modeling.cpu.modules import for_cpu
from polyencoder.modeling.cpu.products import CpuLinear


@pytest.fixture
def model():
    return nn.Sequential(
        nn.Linear(6, 8), nn.ModuleDict({"inner": nn.Linear(8, 4, bias=False)})["inner"], nn.Dropout(0.5)
    )


@pytest.fixture(params=[True, False])
def faster(request, monkeypatch):
    """Whether this processor is one on which linear layers are replaced."""
    monkeypatch.setattr(modules, "onednn_is_faster", lambda: request.param)
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(products, "_product", lambda input, weight, bias: nn.functional.linear(input, weight, bias))
    return request.param


def test_what_is_replaced(model, faster):
    named, keys = dict(model.named_parameters()), list(model.state_dict())
    model[2].eval()
    for_cpu(model)
    assert [type(layer) for layer in model] == [*[CpuLinear if faster else nn.Linear] * 2, CpuDropout]
    assert list(model.state_dict()) == keys
    assert all(parameter is named[name] for name, parameter in model.named_parameters())
    assert (model[0].training, model[2].training, model[2].p) == (True, False, 0.5)


def test_twice_is_once(model, faster):
    for_cpu(model)
    layers = list(model)
    for_cpu(model)
    assert all(one is other for one, other in zip(model, layers, strict=True))


def test_outputs_and_gradients_stay(model, faster):
    x = torch.randn(5, 6)
    results = []
    for replaced in (False, True):
        if replaced:
            for_cpu(model)
        model.zero_grad()
        output = model.eval()(x)
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*results)


def test_copies_pickles_and_graphs(model, faster):
    for_cpu(model.eval())
    x = torch.randn(5, 6)
    expected = model(x)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert [type(layer) for layer in again] == [type(layer) for layer in model]
        assert torch.equal(again(x), expected)
    torch.testing.assert_close(torch.jit.trace(model, x)(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_in_bfloat16_linear_layers_are_torchs(monkeypatch, model, faster):
    for_cpu(model)
    monkeypatch.setattr(products, "linear", None)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(5, 6)).dtype == torch.bfloat16


def test_dropout_is_ours(model):
    for_cpu(model)
    torch.manual_seed(0)
    ours = model[2](torch.ones(100))
    torch.manual_seed(0)
    assert torch.equal(ours, dropout(torch.ones(100), 0.5))
