"""How many updates a run will have, and how many of them are warm-up: logged at its start."""

from __future__ import annotations

import logging

from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.objective import Outcome
from polyencoder.training.schedule import MEASURED
from polyencoder.training.updates import OptimizerUpdates

__all__ = ["ExpectedUpdates"]

_log = logging.getLogger(__name__)

SOON = 0.05  # of the time that a run has


class ExpectedUpdates(Callback):
    """Logs the number of updates; where time ends the run, as soon as their speed is known. Warns of a long warm-up."""

    def __init__(self) -> None:
        self._said: float | None = None
        self._by_time = False

    def on_start(self, run: Run) -> None:
        self._say(run)

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        measured = run.updates.count >= MEASURED and run.goal.time(run.progress) >= SOON
        if measured and not self._by_time:
            self._by_time = True
            self._say(run)

    def _say(self, run: Run) -> None:
        assert isinstance(run.updates, OptimizerUpdates)
        schedule = run.updates.schedule
        expected = schedule.expected_updates
        if expected is None or expected == self._said:
            return
        by_time = " in max_seconds" if self._by_time else ""
        _log.info("expected%s: %d updates, %d of them warm-up", by_time, expected, schedule.warmup_updates)
        if schedule.warmup_updates > expected / 2:
            _log.warning(
                "most of about %d updates are warm-up, %d: the learning rate is small in all of the run; lower "
                "warmup_updates, or train longer",
                expected,
                schedule.warmup_updates,
            )
        self._said = expected
