"""The groups of an optimizer, and what is done to gradients of embeddings, against L2 in the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.settings.training import OptimizerConfig
from polyencoder.training.optimizer import build_optimizer, clip_embeddings, parameter_groups


class Words(TrainableModel):
    """A table of 6 words, a layer on top of it and, if it `has_codes`, new parameters."""

    def __init__(self, *, has_codes: bool = False) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(6, 4), nn.Linear(4, 1)
        self.codes = nn.Parameter(torch.ones(2, 4)) if has_codes else None

    @property
    def new_parameters(self):
        return [] if self.codes is None else [self.codes]

    def forward(self, ids):
        return self.layer(self.table(ids)).sum()


def test_groups():
    model = Words()
    names = {id(p): name for name, p in model.named_parameters()}

    def shown(**options):
        groups = parameter_groups(model, learning_rate=1e-3, new_learning_rate=0.1, weight_decay=0.1, **options)
        return [({names[id(p)] for p in group["params"]}, group["weight_decay"]) for group in groups]

    assert shown() == [({"table.weight", "layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]
    assert shown(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0), ({"table.weight"}, 0.0)]
    model.table.weight.requires_grad_(False)
    assert shown(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({}, 0.01),
        ({"name": "adamax"}, 0.01),
        ({"new_learning_rate": 0.02}, 0.02),
        ({"learning_rate": 0.001}, 0.05),
        ({"learning_rate": 0.2}, 0.2),
        ({"name": "sgd"}, 0.0001),
        ({"name": "adadelta"}, 0.0001),
        ({"name": "sgd", "new_learning_rate": 0.02}, 0.02),
    ],
)
def test_new_parts_have_a_rate_of_their_own_and_no_decay(fields, rate):
    model = Words(has_codes=True)
    config = OptimizerConfig(**{"learning_rate": 1e-4, **fields})
    *others, new = build_optimizer(model, config).param_groups
    assert [id(parameter) for parameter in new["params"]] == [id(model.codes)]
    assert (new["lr"], new["weight_decay"]) == (pytest.approx(rate), 0.0)
    assert {group["lr"] for group in others} == {config.learning_rate}
    assert all(parameter is not model.codes for group in others for parameter in group["params"])
    model.codes.requires_grad_(False)
    assert len(build_optimizer(model, OptimizerConfig(**fields)).param_groups) == len(others)


@pytest.mark.parametrize("rate", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_rate_of_new_parts_is_above_0(rate):
    with pytest.raises(ConfigError, match="new_learning_rate") as error:
        OptimizerConfig(new_learning_rate=rate)
    assert error.value.argument == "new_learning_rate"


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
