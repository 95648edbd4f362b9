"""The learning rate of a run: by its updates, or by its time where that ends it."""

from __future__ import annotations

import math

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.settings.training import ScheduleConfig
from polyencoder.training.schedule import BETTER, MEASURED, Schedule


def schedule_of(config: ScheduleConfig, *, total: int | None, by_time: bool = False, peak: float = 1.0) -> Schedule:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    return Schedule(optimizer, config, total_updates=total, by_time=by_time)


def rates(
    config: ScheduleConfig, *, total: int | None, updates: int, seconds: float | None = None, peak: float = 1.0
) -> list[float]:
    """The rates of a run whose updates take a second each; `seconds` is the limit of its time."""
    schedule = schedule_of(config, total=total, by_time=seconds is not None, peak=peak)
    learning_rates = []
    for done in range(updates):
        learning_rates.append(schedule.learning_rate)
        schedule.step(done + 1, time=0.0 if seconds is None else (done + 1) / seconds)
    return [*learning_rates, schedule.learning_rate]


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("total", [None, 1_000])
def test_time_that_ends_a_run_is_what_the_rate_follows(name, total):
    actual = rates(ScheduleConfig(name=name), total=total, updates=60, seconds=60.0)
    expected = rates(ScheduleConfig(name=name), total=60, updates=60)
    assert actual[6:] == pytest.approx(expected[6:])
    assert actual[6] == pytest.approx(1.0, rel=0.01)
    assert actual[-1] == pytest.approx(0.0, abs=1e-9)


def test_a_limit_of_time_that_is_not_reached_changes_nothing():
    config = ScheduleConfig(name="linear")
    assert rates(config, total=60, updates=60, seconds=1e4) == rates(config, total=60, updates=60)


def test_a_share_of_the_time_is_warm_up():
    config = ScheduleConfig(name="invsqrt", warmup_share=0.06, longest_warmup=None)
    actual = rates(config, total=None, updates=1_000, seconds=1_000.0)
    assert actual.index(max(actual)) == 60
    assert actual[-1] == pytest.approx((60 / 1_000) ** 0.5)


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
    actual = rates(ScheduleConfig(name=name, warmup_updates=10), total=100, updates=int(seconds), seconds=seconds)
    assert actual[-1] == pytest.approx(0.0, abs=1e-6)
    assert actual[10:] == sorted(actual[10:], reverse=True)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_rate_falls_steadily_at_a_changing_speed(name):
    """Updates become slower, so that time overtakes the number of updates in the midst of the run."""
    schedule = schedule_of(ScheduleConfig(name=name, warmup_updates=10), total=100, by_time=True)
    actual, now = [], 0.0
    for done in range(1, 101):
        now += 0.5 if done < 60 else 2.0
        schedule.step(done, time=min(1.0, now / 85.0))
        actual.append(schedule.learning_rate)
        if now >= 85.0:
            break
    assert actual[-1] == pytest.approx(0.0, abs=1e-6)
    assert actual[10:] == sorted(actual[10:], reverse=True)


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 59])
def test_the_rate_goes_from_the_peak_to_its_final_value(name, warmup):
    config = ScheduleConfig(name=name, warmup_updates=warmup, warmup_start=0.2, final_learning_rate=0.5)
    actual = rates(config, total=60, updates=60, peak=2.0)
    for done, rate in enumerate(actual):
        share = (done - warmup) / (60 - warmup)
        falling = 1 - share if name == "linear" else (1 + math.cos(math.pi * share)) / 2
        expected = 0.5 + 1.5 * falling if done >= warmup else 2.0 * (0.2 + 0.8 * done / warmup)
        assert rate == pytest.approx(expected), done


@pytest.mark.parametrize("gamma", [None, 1, 16])
def test_the_root_of_the_updates(gamma):
    config = ScheduleConfig(name="invsqrt", warmup_updates=4, warmup_start=0.0, gamma=gamma)
    actual = rates(config, total=60, updates=60)
    assert actual[:5] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert actual[4 + 3 * (gamma or 4)] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("settings", "total", "expected"),
    [
        ({}, None, 100),
        ({}, 60, 6),
        ({}, 10, 1),
        ({}, 9, 0),
        ({"longest_warmup": None}, 5_000, 500),
        ({"longest_warmup": None}, None, 100),
        ({"warmup_updates": 0}, 60, 0),
        ({"warmup_updates": 60}, None, 60),
    ],
)
def test_a_warm_up_is_100_updates_or_a_tenth_of_a_shorter_run(settings, total, expected):
    assert schedule_of(ScheduleConfig(**settings), total=total).warmup_updates == expected


def test_a_warm_up_of_the_whole_run_is_an_error():
    with pytest.raises(ConfigError, match="a warm-up of 60 updates takes the whole run, of 60") as error:
        schedule_of(ScheduleConfig(warmup_updates=60), total=60)
    assert error.value.argument == "warmup_updates"


def test_the_speed_is_known_after_a_few_updates():
    """Until then it would be luck: the run expects as many updates as without a limit of time."""
    schedule = schedule_of(ScheduleConfig(), total=1_000, by_time=True)
    schedule.step(MEASURED - 1, time=0.5)
    assert schedule.expected_updates == 1_000
    schedule.step(MEASURED, time=0.5)
    assert schedule.expected_updates == 2 * MEASURED
    schedule.step(MEASURED, time=1e-4)
    assert schedule.expected_updates == 1_000


def validated(schedule: Schedule, losses: list[float]) -> list[float]:
    """The rate after each validation."""
    learning_rates = []
    for loss in losses:
        schedule.record_validation(loss)
        learning_rates.append(schedule.learning_rate)
    return learning_rates


@pytest.mark.parametrize(
    ("patience", "losses", "expected"),
    [
        (0, [3.0, 2.0, 2.0, 2.0, 1.0, 1.5], [1.0, 1.0, 0.5, 0.25, 0.25, 0.125]),
        (1, [3.0, 3.0, 3.0, 3.0, 3.0], [1.0, 1.0, 0.5, 0.5, 0.25]),
        (1, [3.0, 3.0, 2.0, 2.5, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
        (0, [1.0, 1.0 - BETTER / 2, 1.0 - 2 * BETTER], [1.0, 0.5, 0.5]),  # too little is no improvement
    ],
)
def test_a_plateau_lowers_the_rate(patience, losses, expected):
    """Whenever `patience` + 1 validations in a row are no better than the best."""
    config = ScheduleConfig(name="plateau", warmup_updates=0, patience=patience, decay=0.5)
    assert validated(schedule_of(config, total=None), losses) == pytest.approx(expected)


def test_a_warm_up_has_no_plateau():
    schedule = schedule_of(ScheduleConfig(name="plateau", warmup_updates=2, decay=0.5), total=None)
    schedule.step(1, time=0.0)
    schedule.record_validation(1.0)
    schedule.step(2, time=0.0)
    assert validated(schedule, [5.0, 5.0, 5.0]) == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("name", ["linear", "constant"])
def test_other_schedules_ignore_validations(name):
    schedule = schedule_of(ScheduleConfig(name=name, warmup_updates=0), total=10)
    assert validated(schedule, [1.0, 1.0, 1.0]) == [1.0, 1.0, 1.0]


def test_a_resumed_plateau_has_the_rates_of_an_uninterrupted_one():
    config = ScheduleConfig(name="plateau", warmup_updates=0, patience=1, decay=0.5)
    first, resumed = (schedule_of(config, total=None) for _ in range(2))
    first.step(3, time=0.0)
    validated(first, [3.0, 3.0, 3.0, 3.0])
    resumed.load_state_dict(first.state_dict())
    assert resumed.learning_rate == first.learning_rate == 0.5
    for schedule in (first, resumed):
        assert validated(schedule, [3.0, 2.0, 2.0]) == [0.25, 0.25, 0.25]
    other = schedule_of(ScheduleConfig(name="constant", warmup_updates=0), total=None)
    other.load_state_dict(first.state_dict())
    assert other.learning_rate == 1.0
