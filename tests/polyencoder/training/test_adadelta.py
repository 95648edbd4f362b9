"""ADADELTA in pieces is torch's, to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.training import adadelta
from polyencoder.training.adadelta import Adadelta


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


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    piece=st.integers(1, 200),
    decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
)
def test_pieces_change_nothing(shapes, piece, decay, maximize):
    before, adadelta.PIECE = adadelta.PIECE, piece
    try:
        options = {"lr": 0.7, "rho": 0.9, "eps": 1e-8, "weight_decay": decay, "maximize": maximize}
        ours, theirs = parameters(shapes), parameters(shapes)
        learn(Adadelta(ours, **options), ours, steps=4)
        learn(torch.optim.Adadelta(theirs, foreach=False, **options), theirs, steps=4)
    finally:
        adadelta.PIECE = before
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


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
    for one, other in zip(ours, unbroken, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_what_is_not_contiguous_and_closures():
    parameter = torch.nn.Parameter(torch.ones(3, 4).t())
    parameter.grad = torch.ones(4, 3)
    assert Adadelta([parameter]).step(lambda: 5.0) == 5.0
    assert (parameter < 1).all()
    other = torch.nn.Parameter(torch.ones(4, 3))
    other.grad = torch.ones(3, 4).t()  # a gradient that is not
    assert Adadelta([other]).step(lambda: 5.0) == 5.0
    assert torch.equal(other.detach(), parameter.detach())
