"""Other functions take the place of torch's inside models, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyencoder.modeling.cpu import functions
from polyencoder.modeling.cpu.dropout import dropout
from polyencoder.modeling.cpu.functions import Instead, fast_functions


def test_within_only():
    x = torch.randn(3, 4)
    layer = nn.Linear(4, 2)
    expected = layer(x)
    with Instead({F.linear: lambda *_: "another"}):
        assert layer(x) == "another"
        assert torch.equal(F.relu(x), x.clamp(min=0))
    assert torch.equal(layer(x), expected)


def test_the_other_calls_torch_itself():
    x, weight = torch.randn(3, 4), torch.randn(2, 4)
    with Instead({F.linear: lambda *inputs: F.linear(*inputs) + 1}):
        assert torch.equal(F.linear(x, weight), x @ weight.t() + 1)


@pytest.mark.parametrize("faster", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
def test_linear_layers_are_onednns_where_that_is_faster(monkeypatch, faster, bf16):
    calls = []
    monkeypatch.setattr(functions, "ONEDNN_IS_FASTER", faster)
    monkeypatch.setattr(functions, "linear", lambda *inputs: calls.append(inputs) or F.linear(*inputs))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), fast_functions():
        nn.Linear(4, 2)(torch.randn(3, 4))
    assert len(calls) == (faster and not bf16)


def test_attention_that_is_given():
    with fast_functions(lambda *_: "mine"):
        assert F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 2, 4)) == "mine"


def test_dropout_is_ours():
    layer = nn.Dropout(0.5)
    with fast_functions():
        torch.manual_seed(0)
        inside = layer(torch.ones(100))
    torch.manual_seed(0)
    assert torch.equal(inside, dropout(torch.ones(100), 0.5))
