"""Modules of ours take the place of torch's, with the same parameters under the same names."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from polyencoder.modeling.cpu import modules, products
from polyencoder.modeling.cpu.modules import (
    CpuDropout,
    apply_dropout,
    compute_factor,
    compute_keep_mask,
    replace_layers,
)
from polyencoder.modeling.cpu.products import CpuLinear


@pytest.fixture
def model():
    return nn.Sequential(
        nn.Linear(6, 8), nn.ModuleDict({"inner": nn.Linear(8, 4, bias=False)})["inner"], nn.Dropout(0.5)
    )


@pytest.fixture(params=[True, False])
def faster(request, monkeypatch):
    """Whether this processor is one on which linear layers are replaced."""
    monkeypatch.setattr(modules, "is_onednn_faster", lambda: request.param)
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(products, "_multiply", lambda input, weight, bias: nn.functional.linear(input, weight, bias))
    return request.param


def test_what_is_replaced(model, faster):
    named, keys = dict(model.named_parameters()), list(model.state_dict())
    model[2].eval()
    replace_layers(model)
    assert [type(layer) for layer in model] == [*[CpuLinear if faster else nn.Linear] * 2, CpuDropout]
    assert list(model.state_dict()) == keys
    assert all(parameter is named[name] for name, parameter in model.named_parameters())
    assert (model[0].training, model[2].training, model[2].p) == (True, False, 0.5)


def test_twice_is_once(model, faster):
    replace_layers(model)
    layers = list(model)
    replace_layers(model)
    assert all(layer is original for layer, original in zip(model, layers, strict=True))


def test_outputs_and_gradients_stay(model, faster):
    x = torch.randn(5, 6)
    results = []
    for replaced in (False, True):
        if replaced:
            replace_layers(model)
        model.zero_grad()
        output = model.eval()(x)
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*results)


@pytest.mark.slow
def test_copies_pickles_and_graphs(model, faster):
    replace_layers(model.eval())
    x = torch.randn(5, 6)
    expected = model(x)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert [type(layer) for layer in again] == [type(layer) for layer in model]
        assert torch.equal(again(x), expected)
    torch.testing.assert_close(torch.jit.trace(model, x)(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_in_bfloat16_linear_layers_are_torchs(monkeypatch, model, faster):
    replace_layers(model)
    monkeypatch.setattr(products, "apply_linear", None)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(5, 6)).dtype == torch.bfloat16


def test_dropout_is_ours(model):
    replace_layers(model)
    torch.manual_seed(0)
    ours = model[2](torch.ones(100))
    torch.manual_seed(0)
    assert torch.equal(ours, apply_dropout(torch.ones(100), 0.5))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_how_much_is_dropped_and_that_the_mean_stays(p):
    torch.manual_seed(0)
    values = apply_dropout(torch.ones(1000, 1000), p)
    assert float((values == 0).float().mean()) == pytest.approx(p, abs=5 * (p * (1 - p) / 1e6) ** 0.5)
    assert values[values != 0].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-3)


@pytest.mark.slow
def test_decisions_do_not_depend_on_each_other():
    torch.manual_seed(0)
    is_kept = (apply_dropout(torch.ones(4_000_000), 0.3) != 0).double().view(-1, 4)
    for other in (is_kept[:, [1, 2, 3, 0]], is_kept.roll(1, 0)):
        assert abs(float(torch.corrcoef(torch.stack([is_kept.flatten(), other.flatten()]))[0, 1])) < 0.003


@given(st.lists(st.integers(0, 7), min_size=0, max_size=3), st.sampled_from([torch.float32, torch.bfloat16]))
def test_shapes_and_types(shape, dtype):
    values = apply_dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert (values.shape, values.dtype) == (torch.Size(shape), dtype)
    assert set(values.flatten().tolist()) <= {0.0, 2.0}


def test_gradients_are_those_of_what_was_kept():
    x = torch.randn(30, 20, requires_grad=True)
    values = apply_dropout(x.t(), 0.25)
    values.sum().backward()
    expected = torch.where(values.t() != 0, 4 / 3, 0.0)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("p", [1 / 2**16, 0.1, 0.5, 1 - 1 / 2**16])
def test_each_number_is_kept_or_dropped_as_a_comparison_says(p):
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16)
    expected = (numbers.int() >= -(2**15) + round(p * 2**16)).float()
    assert torch.equal(compute_keep_mask(numbers, p), expected)
    assert float(compute_keep_mask(numbers, p).mean()) * compute_factor(p) == pytest.approx(1)


def test_repeated_with_the_same_random_state():
    x = torch.randn(100)
    state = torch.get_rng_state()
    first, second = apply_dropout(x, 0.5), apply_dropout(x, 0.5)
    torch.set_rng_state(state)
    assert torch.equal(first, apply_dropout(x, 0.5))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 1.0}, {"training": False}, {"p": 1e-9}])
def test_nothing_to_decide(options):
    x = torch.randn(50)
    assert torch.equal(apply_dropout(x, **options), F.dropout(x, **options) if options.get("p") != 1e-9 else x)


def test_in_place():
    x = torch.ones(50)
    assert apply_dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_not_a_probability():
    with pytest.raises(ValueError, match="probability"):
        apply_dropout(torch.ones(3), 1.5)
