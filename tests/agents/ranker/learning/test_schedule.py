"""The learning rate: a warm-up, then a decay whenever the validation loss has stopped falling."""

from __future__ import annotations

import pytest
import torch
from parlai.agents.ranker.learning.schedule import build_schedule

OPTIONS = {
    "lr_scheduler": "reduceonplateau",
    "lr_scheduler_decay": 0.4,
    "lr_scheduler_patience": 0,
    "warmup_updates": 4,
    "warmup_rate": 1e-4,
    "max_train_steps": 10,
    "invsqrt_lr_decay_gamma": -1,
}


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=1.0)


def rates(schedule, optimizer, updates: range) -> list[float]:
    """The rate after each of these updates."""
    seen = []
    for update in updates:
        optimizer.step()
        schedule.step(update)
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_the_warm_up_is_linear_and_reaches_the_full_rate(optimizer):
    schedule = build_schedule(OPTIONS, optimizer, {}, hard_reset=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert rates(schedule, optimizer, range(1, 7)) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1], abs=1e-4)


@pytest.mark.parametrize("updates", [-1, 0])
def test_without_a_warm_up_the_rate_is_full_at_once(updates, optimizer):
    schedule = build_schedule({**OPTIONS, "warmup_updates": updates}, optimizer, {}, hard_reset=True)
    assert optimizer.param_groups[0]["lr"] == 1
    assert rates(schedule, optimizer, range(1, 3)) == [1, 1]


def test_the_rate_decays_when_the_loss_stops_falling(optimizer):
    schedule = build_schedule(OPTIONS, optimizer, {}, hard_reset=True)
    schedule.valid_step({"loss": 1.0})
    schedule.valid_step({"loss": 9.0})  # while it warms up nothing counts
    rates(schedule, optimizer, range(1, 5))
    after = []
    for loss in (5.0, 4.0, 4.5, 4.5, 3.0, 3.0):
        schedule.valid_step({"loss": loss})
        after.append(optimizer.param_groups[0]["lr"])
    assert after == pytest.approx([1, 1, 0.4, 0.16, 0.16, 0.064])
    schedule.valid_step({"accuracy": 0.5})  # a report without a loss says nothing
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.064)


def test_patience_waits(optimizer):
    schedule = build_schedule({**OPTIONS, "lr_scheduler_patience": 1}, optimizer, {}, hard_reset=True)
    rates(schedule, optimizer, range(1, 5))
    after = []
    for loss in (1.0, 1.0, 1.0):
        schedule.valid_step({"loss": loss})
        after.append(optimizer.param_groups[0]["lr"])
    assert after == pytest.approx([1, 1, 0.4])


@pytest.mark.parametrize("stopped", [2, 4, 7])
@pytest.mark.parametrize("name", ["reduceonplateau", "fixed", "invsqrt", "linear", "cosine"])
def test_a_stopped_schedule_goes_on(name, stopped, optimizer):
    """From the rate at which it was stopped: what comes next depends on nothing else."""
    options = {**OPTIONS, "lr_scheduler": name}

    def fresh():
        return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=1.0)

    through = build_schedule(options, optimizer, {}, hard_reset=True)
    first, second = fresh(), fresh()
    schedule = build_schedule(options, first, {}, hard_reset=True)
    expected = rates(through, optimizer, range(1, 10))
    seen = rates(schedule, first, range(1, stopped + 1))
    states = {
        "number_training_updates": stopped,
        "lr_scheduler": schedule.get_state_dict(),
        "lr_scheduler_type": name,
        "warmup_scheduler": schedule.get_warmup_state_dict(),
    }
    second.load_state_dict(first.state_dict())
    again = build_schedule(options, second, states, hard_reset=False)
    assert again.get_initial_number_training_updates() == stopped
    assert second.param_groups[0]["lr"] == pytest.approx(first.param_groups[0]["lr"])
    assert seen + rates(again, second, range(stopped + 1, 10)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1]),
        ("fixed", [0.25, 0.5, 0.75, 0.75, 0.75, 0.75]),
        ("invsqrt", [0.25, 0.5, 0.75, (4 / 5) ** 0.5, (4 / 6) ** 0.5, (4 / 7) ** 0.5]),
        ("linear", [0.25, 0.5, 0.75, 5 / 6, 4 / 6, 3 / 6]),
        ("cosine", [0.25, 0.5, 0.75, 0.9659, 0.8660, 0.7071]),
    ],
)
def test_parlais_other_schedules_run(name, expected, make_agent, respond):
    options = {"warmup_updates": 4, "max_train_steps": 10, "lr_scheduler_patience": 1, "learningrate": 1.0}
    agent = make_agent("biencoder", lr_scheduler=name, optimizer="sgd", gradient_clip=1e-6, **options)
    seen = []
    for _ in expected:
        respond(agent, {"text": "a", "labels": ["b"]}, {"text": "c", "labels": ["d"]})
        seen.append(agent.optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx(expected, abs=1e-3)
    agent.receive_metrics({"loss": 1.0, "accuracy": 0.5})
    assert agent.state_dict()["number_training_updates"] == len(expected)


def test_a_fixed_decay_with_the_default_patience_comes_at_each_validation(make_agent):
    agent = make_agent("biencoder", lr_scheduler="fixed", warmup_updates=-1, learningrate=1.0)
    assert agent.opt["lr_scheduler_patience"] == 0
    for rate in (0.4, 0.16):
        agent.optimizer.step()
        agent.receive_metrics({"loss": 1.0, "accuracy": 0.5})
        assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_decay_of_one_is_no_schedule(make_agent):
    assert make_agent("biencoder", lr_scheduler_decay=1.0).scheduler is None


def test_the_defaults_are_the_papers(make_agent):
    opt = make_agent("polyencoder").opt
    wanted = {"lr_scheduler": "reduceonplateau", "lr_scheduler_decay": 0.4, "lr_scheduler_patience": 0}
    wanted |= {"optimizer": "adamw", "learningrate": 5e-5, "warmup_updates": 100, "validation_every_n_epochs": 0.5}
    assert {name: opt[name] for name in wanted} == wanted
    assert make_agent("crossencoder").opt["warmup_updates"] == 1000
