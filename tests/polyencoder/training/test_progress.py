"""How far a run is, and when it is over."""

from __future__ import annotations

import pytest

from polyencoder.training.progress import Goal, Progress

HALF = Progress(examples=50, batches=5, updates=5, seconds=10.0)


def test_a_run_without_a_limit_never_ends():
    goal = Goal()
    assert goal.compute_share(HALF) is None
    assert not goal.is_reached(HALF)
    assert goal.compute_total_updates(batch=10, accumulate=1) is None
    assert goal.estimate_seconds_left(HALF, rate=5.0) is None


def test_whichever_limit_comes_first_ends_a_run():
    assert Goal(examples=100, updates=20, seconds=40.0).compute_share(HALF) == 0.5
    assert Goal(examples=200, updates=8, seconds=40.0).compute_share(HALF) == 5 / 8
    assert not Goal(examples=51).is_reached(HALF)
    for goal in (Goal(examples=50, updates=6), Goal(examples=1000, updates=5), Goal(seconds=9.0)):
        assert goal.is_reached(HALF)
        assert goal.compute_share(HALF) == 1.0  # never more


def test_the_share_of_the_time():
    assert Goal(examples=1).compute_time(HALF) == 0.0
    assert Goal(seconds=40.0).compute_time(HALF) == 0.25
    assert Goal(seconds=5.0).compute_time(HALF) == 1.0


@pytest.mark.parametrize(
    ("goal", "batch", "accumulate", "expected"),
    [
        (Goal(examples=100), 10, 1, 10),
        (Goal(examples=101), 10, 1, 11),  # the last batch is not whole
        (Goal(examples=101), 10, 2, 5),
        (Goal(examples=3), 10, 2, 1),
        (Goal(examples=100, updates=7), 10, 1, 7),
        (Goal(examples=50, updates=7), 10, 1, 5),
        (Goal(updates=7), 10, 4, 7),
        (Goal(seconds=7.0), 10, 1, None),
    ],
)
def test_the_updates_of_a_run(goal, batch, accumulate, expected):
    assert goal.compute_total_updates(batch=batch, accumulate=accumulate) == expected


def test_the_time_left():
    assert Goal(seconds=40.0).estimate_seconds_left(HALF, rate=5.0) == 30.0
    assert Goal(examples=100).estimate_seconds_left(HALF, rate=5.0) == 10.0
    assert Goal(updates=20).estimate_seconds_left(HALF, rate=5.0) == 30.0  # ten examples an update
    assert Goal(examples=100, updates=20, seconds=14.0).estimate_seconds_left(HALF, rate=5.0) == 4.0
    assert Goal(examples=40).estimate_seconds_left(HALF, rate=5.0) == 0.0
    assert Goal(examples=100, updates=20).estimate_seconds_left(Progress(), rate=0.0) is None
