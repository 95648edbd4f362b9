"""The groups of an optimizer, and what is done to gradients of embeddings, against L2 in the loss."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.settings.training import OptimizerConfig
from polyencoder.training import optimizer as optimizer_module
from polyencoder.training.optimizer import Adadelta, build_optimizer, build_parameter_groups, clip_embeddings


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

    def list_groups(**options):
        groups = build_parameter_groups(model, OptimizerConfig(weight_decay=0.1, **options))
        return [({names[id(p)] for p in group["params"]}, group["weight_decay"]) for group in groups]

    assert list_groups() == [({"table.weight", "layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]
    assert list_groups(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0), ({"table.weight"}, 0.0)]
    model.table.weight.requires_grad_(False)
    assert list_groups(embedding_clip=1.0) == [({"layer.weight"}, 0.1), ({"layer.bias"}, 0.0)]


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
    with pytest.raises(ConfigError, match="embedding_clip limits .* none are trained"):
        build_optimizer(model, OptimizerConfig(embedding_clip=1.0))
    with pytest.raises(ConfigError, match="embedding_clip is -1; it must be at least 0"):
        OptimizerConfig(embedding_clip=-1)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.0, True), (0.9, False), (0.9, True)])
def test_momentum_is_that_of_torch(momentum, nesterov):
    """Without one there is nothing to look ahead to, which torch refuses."""
    ours, theirs = Words(), Words()
    theirs.load_state_dict(ours.state_dict())
    config = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.0)
    options = {"momentum": momentum, "nesterov": True} if momentum and nesterov else {"momentum": momentum}
    learn(build_optimizer(ours, config), [*ours.parameters()], steps=3)
    learn(torch.optim.SGD(theirs.parameters(), lr=0.1, **options), [*theirs.parameters()], steps=3)
    for our_parameter, torch_parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our_parameter, torch_parameter)


def parameters(shapes: list[list[int]]) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def learn(optimizer: torch.optim.Optimizer, ours: list[torch.nn.Parameter], *, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for number in range(steps):
        for i, parameter in enumerate(ours):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if (i + number) % 3 == 2 else gradient  # which some have in some steps alone
        optimizer.step()


@pytest.mark.slow
@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    piece=st.integers(1, 200),
    decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
)
def test_pieces_change_nothing(shapes, piece, decay, maximize):
    before, optimizer_module.PIECE = optimizer_module.PIECE, piece
    try:
        options = {"lr": 0.7, "rho": 0.9, "eps": 1e-8, "weight_decay": decay, "maximize": maximize}
        ours, theirs = parameters(shapes), parameters(shapes)
        learn(Adadelta(ours, **options), ours, steps=4)
        learn(torch.optim.Adadelta(theirs, foreach=False, **options), theirs, steps=4)
    finally:
        optimizer_module.PIECE = before
    for our_parameter, torch_parameter in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_parameter, torch_parameter, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kinds", [(Adadelta, torch.optim.Adadelta), (torch.optim.Adadelta, Adadelta)])
def test_a_run_goes_on_with_the_states_of_the_other(kinds):
    ours = parameters([[3, 4], [5]])
    unbroken = copy.deepcopy(ours)
    first = kinds[0](ours)
    learn(first, ours, steps=3)
    second = kinds[1](ours)
    second.load_state_dict(first.state_dict())
    learn(second, ours, steps=3, seed=2)
    whole = kinds[0](unbroken)
    learn(whole, unbroken, steps=3)
    learn(whole, unbroken, steps=3, seed=2)
    for resumed, expected in zip(ours, unbroken, strict=True):
        torch.testing.assert_close(resumed, expected, rtol=1e-6, atol=1e-7)


def test_what_is_not_contiguous_and_closures():
    parameter = torch.nn.Parameter(torch.ones(3, 4).t())
    parameter.grad = torch.ones(4, 3)
    assert Adadelta([parameter]).step(lambda: 5.0) == 5.0
    assert (parameter < 1).all()
    other = torch.nn.Parameter(torch.ones(4, 3))
    other.grad = torch.ones(3, 4).t()  # a gradient that is not
    assert Adadelta([other]).step(lambda: 5.0) == 5.0
    assert torch.equal(other.detach(), parameter.detach())
