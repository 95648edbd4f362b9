"""Weights in 16 bits: the copy that evaluation under autocast runs with."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from polyencoder.modeling.loading import build_backbone
from polyencoder.modeling.rounding import get_weights_state
from polyencoder.text import TokenBatch


@pytest.fixture
def backbone(make_backbone_config):
    torch.manual_seed(0)
    return build_backbone(make_backbone_config() | {"initializer_range": 0.1}).eval()


@pytest.fixture
def tokens():
    ids = torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 4, 1, 7]).unsqueeze(1)
    return TokenBatch(ids * mask, mask)


def evaluated(backbone, tokens, *, bf16=True):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        return backbone(tokens)[tokens.mask]


def test_evaluation_under_autocast_casts_the_weights_once(backbone, tokens):
    exact, outputs = evaluated(backbone, tokens, bf16=False), evaluated(backbone, tokens)
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, exact, rtol=0.05, atol=0.05)
    rounded = backbone._weights._copy
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
    assert torch.equal(evaluated(backbone, tokens), outputs)
    assert backbone._weights._copy is rounded


@pytest.mark.parametrize("change", ["step", "load", "move", "data"])
def test_weights_that_have_changed_are_cast_again(backbone, tokens, change):
    before = evaluated(backbone, tokens)
    if change == "step":
        backbone(tokens).square().sum().backward()
        torch.optim.AdamW(backbone.parameters(), lr=0.1, fused=True).step()
    elif change == "load":
        backbone.load_state_dict({name: value + 0.5 for name, value in backbone.state_dict().items()})
    elif change == "move":
        backbone.train()
        backbone.model.embeddings.word_embeddings.weight.data += 1
        backbone.eval()
    else:
        for parameter in backbone.parameters():
            parameter.data = parameter.data * 1.5
    after = evaluated(backbone, tokens)
    assert not torch.equal(after, before)
    fresh = copy.deepcopy(backbone)
    assert torch.equal(evaluated(fresh, tokens), after)


def test_learning_has_no_copy(backbone, tokens):
    evaluated(backbone, tokens)
    backbone.train()
    with torch.autocast("cpu", torch.bfloat16):
        backbone(tokens).float().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    assert backbone._weights._copy is None


def test_the_copy_is_no_part_of_what_is_saved(backbone, tokens):
    keys = list(backbone.state_dict())
    assert backbone.packs  # tried, which leaves a trace
    size = len(pickle.dumps(backbone))
    evaluated(backbone, tokens)
    assert list(backbone.state_dict()) == keys
    assert len(pickle.dumps(backbone)) == size


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_every_kind_of_step_is_a_change(optimizer, how):
    layer = torch.nn.Linear(3, 1, bias=False)
    layer(torch.ones(3)).backward()
    before = get_weights_state(layer)
    assert get_weights_state(layer) == before
    optimizer(layer.parameters(), lr=0.1, **how).step()
    assert get_weights_state(layer) != before


def test_other_changes_and_none():
    layer = torch.nn.Linear(3, 1)
    before = get_weights_state(layer)
    layer(torch.ones(3)).sum().backward()
    layer.requires_grad_(False)
    assert get_weights_state(layer) == before
    assert get_weights_state(copy.deepcopy(layer)) != before
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
    assert get_weights_state(layer) != before
    with torch.inference_mode():
        get_weights_state(torch.nn.Linear(3, 1))  # its tensors have no versions
