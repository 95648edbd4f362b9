"""The learning rate of a run: by its updates, or by its time where that ends it."""

from __future__ import annotations

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.training.schedule import Schedule, ScheduleConfig


def rates(config: ScheduleConfig, *, total: int | None, updates: int, seconds: float | None = None) -> list[float]:
    """Those of a run whose updates take a second each, which has so many seconds."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = Schedule(optimizer, config, total_updates=total, by_time=seconds is not None)
    found = []
    for done in range(updates):
        found.append(schedule.learning_rate)
        schedule.step(done + 1, time=0.0 if seconds is None else (done + 1) / seconds)
    return [*found, schedule.learning_rate]


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("total", [None, 1_000])
def test_time_that_ends_a_run_is_what_the_rate_follows(name, total):
    found = rates(ScheduleConfig(name=name), total=total, updates=60, seconds=60.0)
    expected = rates(ScheduleConfig(name=name), total=60, updates=60)
    assert found[6:] == pytest.approx(expected[6:])
    assert found[6] == pytest.approx(1.0, rel=0.01)
    assert found[-1] == pytest.approx(0.0, abs=1e-9)


def test_a_limit_of_time_that_is_not_reached_changes_nothing():
    config = ScheduleConfig(name="linear")
    assert rates(config, total=60, updates=60, seconds=1e4) == rates(config, total=60, updates=60)


def test_a_share_of_the_time_is_warm_up():
    config = ScheduleConfig(name="invsqrt", warmup_share=0.06, longest_warmup=None)
    found = rates(config, total=None, updates=1_000, seconds=1_000.0)
    assert found.index(max(found)) == 60
    assert found[-1] == pytest.approx((60 / 1_000) ** 0.5)


def test_by_default_the_rate_falls_to_the_end_if_that_is_known():
    assert rates(ScheduleConfig(), total=60, updates=60) == rates(ScheduleConfig(name="linear"), total=60, updates=60)
    assert rates(ScheduleConfig(), total=None, updates=60) == rates(
        ScheduleConfig(name="constant"), total=None, updates=60
    )


def test_a_schedule_needs_an_end():
    with pytest.raises(ConfigError, match="needs the number of updates"):
        rates(ScheduleConfig(name="linear"), total=None, updates=1)


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("seconds", [85.0, 92.0, 96.0, 99.0])
def test_the_rate_falls_to_its_end_where_time_and_updates_end_together(name, seconds):
    """Updates take a second each: the run is cut off when most of its 100 updates are done."""
    found = rates(ScheduleConfig(name=name, warmup_updates=10), total=100, updates=int(seconds), seconds=seconds)
    assert found[-1] == pytest.approx(0.0, abs=1e-6)
    assert found[10:] == sorted(found[10:], reverse=True)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_rate_falls_steadily_at_a_changing_speed(name):
    """Updates become slower, so that time overtakes the number of updates in the midst of the run."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = Schedule(optimizer, ScheduleConfig(name=name, warmup_updates=10), total_updates=100, by_time=True)
    found, now = [], 0.0
    for done in range(1, 101):
        now += 0.5 if done < 60 else 2.0
        schedule.step(done, time=min(1.0, now / 85.0))
        found.append(schedule.learning_rate)
        if now >= 85.0:
            break
    assert found[-1] == pytest.approx(0.0, abs=1e-6)
    assert found[10:] == sorted(found[10:], reverse=True)
