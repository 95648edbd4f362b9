"""Evaluation mode for as long as something is computed."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from polyencoder.errors import CheckpointError
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.mode import in_evaluation


def test_each_part_gets_back_the_mode_that_it_had():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model.train()
    model[1].eval()
    with contextlib.suppress(KeyError), in_evaluation(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False]


def test_weights_that_are_not_finite_are_named():
    check_finite([("whole", torch.tensor([1])), ("half", torch.ones(2))], origin="model")
    for bad in (torch.nan, torch.inf):
        tensors = [("half", torch.ones(2)), ("layer.weight", torch.tensor([[1.0, bad, bad]]))]
        with pytest.raises(CheckpointError, match=r"^my/model: 2 of the 3 numbers in layer.weight are nan or infinite"):
            check_finite(tensors, origin="my/model")
