"""Updates of a linear layer, against the same arithmetic by hand."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from polyencoder.errors import TrainingError
from polyencoder.settings.training import ScheduleConfig
from polyencoder.training.precision import Precision
from polyencoder.training.schedule import Schedule
from polyencoder.training.updates import OptimizerUpdates

RATE = 0.5


def updates_of(model: nn.Module, **settings) -> OptimizerUpdates:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = Schedule(optimizer, ScheduleConfig(name="constant", warmup_updates=2, warmup_start=0.5), total_updates=9)
    return OptimizerUpdates(model, optimizer, schedule, precision=Precision("float32", torch.device("cpu")), **settings)


def batch(updates: OptimizerUpdates, value: float) -> None:
    """A batch whose loss has the gradient `value` for each of two weights."""
    updates.zero_grad()
    losses = updates.model.weight.sum(1) * value
    updates.check_losses(losses.detach())
    updates.backward(losses.sum())
    updates.step()


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(2, 1, bias=False)


def test_the_gradients_of_several_batches_are_averaged(model):
    updates, before = updates_of(model, accumulate=3), model.weight.detach().clone()
    for value, is_under_way in ((1.0, True), (2.0, True), (6.0, False)):
        assert torch.equal(model.weight, before)
        batch(updates, value)
        assert updates.is_under_way == is_under_way
    assert updates.count == 1
    torch.testing.assert_close(model.weight.detach(), before - RATE * 0.5 * 3.0)  # at the start of the warm-up
    assert updates.learning_rate == pytest.approx(RATE * 0.75)
    batch(updates, 1.0)  # begins from zero
    torch.testing.assert_close(model.weight.grad, torch.full((1, 2), 1 / 3))


@pytest.mark.parametrize(("clip", "length"), [(None, 5.0), (2.5, 2.5), (100.0, 5.0)])
def test_the_norm_is_that_before_clipping(model, clip, length):
    updates, before = updates_of(model, clip=clip), model.weight.detach().clone()
    batch(updates, 5.0 / 2**0.5)
    assert updates.norm == pytest.approx(5.0)
    step = (before - model.weight.detach()).norm().item()
    assert step == pytest.approx(RATE * 0.5 * length, rel=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_counted_and_skipped(model, value):
    updates, before = updates_of(model, max_nonfinite=3), model.weight.detach().clone()
    batch(updates, value)
    batch(updates, value)
    assert torch.equal(model.weight, before)
    assert (updates.count, updates.left_out) == (2, 2)
    batch(updates, 1.0)  # begins the count anew
    assert (updates.count, updates.left_out) == (3, 2)
    assert not torch.equal(model.weight, before)
    batch(updates, value)
    batch(updates, value)
    with pytest.raises(TrainingError, match="update 6: .* as in the 3 updates up to it") as error:
        batch(updates, value)
    assert error.value.argument == "max_nonfinite"


def test_losses_that_are_not_finite_skip_finite_gradients(model):
    updates, before = updates_of(model), model.weight.detach().clone()
    updates.zero_grad()
    updates.check_losses(torch.tensor([1.0, float("inf")]))
    updates.backward(model.weight.sum())
    updates.step()
    assert updates.left_out == 1
    assert torch.equal(model.weight, before)


def test_a_resumed_run_makes_the_same_updates(model):
    """In the midst of an update, after one that was skipped."""
    values = [1.0, 2.0, float("nan"), 0.0, 3.0, -1.0, 4.0]
    updates = updates_of(model, accumulate=2, clip=1.0)
    for value in values[:5]:
        batch(updates, value)
    other = nn.Linear(2, 1, bias=False)
    other.load_state_dict(model.state_dict())
    resumed = updates_of(other, accumulate=2, clip=1.0)
    resumed.load_state_dict(deepcopy(updates.state_dict()))
    assert resumed.is_under_way
    for run in (updates, resumed):
        for value in values[5:]:
            batch(run, value)
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.weight.grad, other.weight.grad)
    for name in ("count", "left_out", "norm", "learning_rate", "is_under_way"):
        assert getattr(resumed, name) == getattr(updates, name), name
