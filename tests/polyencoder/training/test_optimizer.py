"""The groups of an optimizer, and what is done to gradients of embeddings, against L2 in the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.errors import ConfigError
from polyencoder.settings.training import OptimizerConfig
from polyencoder.training.optimizer import build_optimizer, clip_embeddings, parameter_groups


class Words(nn.Module):
    """A table of 6 words and a layer on top of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(6, 4), nn.Linear(4, 1)

    def forward(self, ids):
        return self.layer(self.table(ids)).sum()


def test_groups():
    model = Words()
    names = {id(p): name for name, p in model.named_parameters()}

    def shown(**options):
        groups = parameter_groups(model, weight_decay=0.1, **options)
        return [({names[id(p)] for p in group["params"]}, group["weight_decay"]) for group in groups]

    assert shown() == [({"table.weight", "layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]
    assert shown(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0), ({"table.weight"}, 0.0)]
    model.table.weight.requires_grad_(False)
    assert shown(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]


@pytest.mark.parametrize("clip", [100.0, 0.01])
def test_the_decay_of_embeddings_is_that_of_the_rows_that_were_looked_up(clip):
    ids, decay = torch.tensor([1, 3, 3]), 0.3
    model = Words()
    optimizer = build_optimizer(
        model, OptimizerConfig(name="sgd", learning_rate=1.0, weight_decay=decay, embedding_clip=clip)
    )
    before = model.table.weight.detach().clone()

    table = before.clone().requires_grad_()
    penalty = decay / 2 * table[ids.unique()].square().sum()  # once for each word, however often it is there
    loss = model.layer(table[ids]).sum() + penalty
    (expected,) = torch.autograd.grad(loss, table)
    expected = expected * min(1.0, clip / float(expected.norm()))

    model(ids).backward()
    clip_embeddings(optimizer)
    torch.testing.assert_close(model.table.weight.grad, expected)
    optimizer.step()
    torch.testing.assert_close(model.table.weight.detach(), before - expected)
    assert torch.equal(model.table.weight[0], before[0])


def test_without_a_gradient_there_is_nothing_to_clip():
    model = Words()
    optimizer = build_optimizer(model, OptimizerConfig(name="adadelta", learning_rate=1.0, embedding_clip=1.0))
    clip_embeddings(optimizer)
    assert model.table.weight.grad is None
    model.table.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="embedding_clip limits .* of which none are trained"):
        build_optimizer(model, OptimizerConfig(embedding_clip=1.0))
    with pytest.raises(ConfigError, match="embedding_clip is -1; it must be at least 0"):
        OptimizerConfig(embedding_clip=-1)
