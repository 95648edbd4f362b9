from __future__ import annotations

import copy

import pytest
import torch

from polyencoder.modeling.changes import weights_state


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_every_kind_of_step_is_a_change(optimizer, how):
    layer = torch.nn.Linear(3, 1, bias=False)
    layer(torch.ones(3)).backward()
    before = weights_state(layer)
    assert weights_state(layer) == before
    optimizer(layer.parameters(), lr=0.1, **how).step()
    assert weights_state(layer) != before


def test_other_changes_and_none():
    layer = torch.nn.Linear(3, 1)
    before = weights_state(layer)
    layer(torch.ones(3)).sum().backward()
    layer.requires_grad_(False)
    assert weights_state(layer) == before
    assert weights_state(copy.deepcopy(layer)) != before
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
    assert weights_state(layer) != before
    with torch.inference_mode():
        weights_state(torch.nn.Linear(3, 1))  # its tensors have no versions
