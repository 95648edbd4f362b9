"""Logs the length, progress and evaluations of a run, on standard error if the program configures no logging."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from polyencoder.data.collator import Batch
from polyencoder.evaluation import Tally, pool_ranks
from polyencoder.evaluation.names import format_line, select_main_measures
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.objective import Outcome
from polyencoder.training.schedule import MEASURED

AMONG = "among"
"""The key of a batch's number of candidates per example."""
SOON = 0.05  # of the time that a run has

_log = logging.getLogger(__name__)


def measure_batch(outcome: Outcome) -> dict[str, tuple[float, int]]:
    """The measures of a batch as (sum, count): `loss`, `R@1` and `AMONG`.

    R@1 in training is among the candidates of a batch, and does not compare with evaluations. A batch without labels to
    rank has the measures of its objective.
    """
    count, labels = len(outcome), outcome.pool.labels
    if labels is None or not count:
        return dict(outcome.sums)
    hits = int((pool_ranks(outcome.scores, outcome.pool) == 1).sum())
    loss, candidates = float(outcome.losses.sum()), sum(outcome.pool.count_candidates(count))
    return {"loss": (loss, count), "R@1": (hits, count), AMONG: (candidates, count)}


def format_rate(rate: float) -> str:
    """Formats examples per second: `1,184 examples/s`, `0.3 examples/s`."""
    return f"{rate:,.0f} examples/s" if rate >= 1 else f"{rate:.1g} examples/s"


class Log(Callback):
    """Logs the expected number of updates, evaluations, and means over the batches since the last line.

    Means are over this process's batches, the speed is that of all processes. With a time limit, the number of updates
    is logged as soon as their speed is known. every_seconds: between two lines; None for evaluations alone.
    """

    def __init__(self, *, every_seconds: float | None = 10.0) -> None:
        self._every = every_seconds
        self._expected: float | None = None
        self._by_time = self._begun = False
        self._seen = 0
        self.clear()

    def clear(self) -> None:
        """Resets the means."""
        self._last = self._until = time.monotonic()
        self._tally = Tally()
        self._examples = 0

    def on_start(self, run: Run) -> None:
        self._begun = False

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if not self._begun:  # callbacks behind this one have resumed the run, evaluated the model, or saved it
            self._begun, self._seen = True, run.progress.examples
            self.clear()
            self._log_expected(run)
        return batch

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if not self._by_time and run.updates.count >= MEASURED and run.goal.compute_time(run.progress) >= SOON:
            self._by_time = True
            self._log_expected(run)
        self._examples, self._seen = self._examples + run.progress.examples - self._seen, run.progress.examples
        if outcome is not None:
            self._tally.merge(measure_batch(outcome))
        self._until = time.monotonic()  # an evaluation may follow
        if self._every is not None and self._tally.sums and self._until - self._last >= self._every:
            self._log_batches(run)

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if self._every is not None and self._tally.sums:
            self._log_batches(run)
        _log.info("after %d updates: %s", run.updates.count, self.format_report(report))
        self.clear()
        self._begun = False

    def format_report(self, report: Mapping[str, float]) -> str:
        """Formats an evaluation."""
        return format_line(select_main_measures(report))

    def format_means(self, means: Mapping[str, float]) -> str:
        """Formats the means of `measure_batch`."""
        return f"loss {means['loss']:.4g}, R@1 of the batch {means['R@1']:.3f} (among {means[AMONG]:.0f})"

    def format_speed(self, seconds: float) -> str:
        """Formats the speed since the last line."""
        return format_rate(self._examples / seconds)

    def _log_batches(self, run: Run) -> None:
        seconds = max(self._until - self._last, 1e-9)
        rate = self._examples / seconds
        share, left = run.goal.compute_share(run.progress), run.goal.estimate_seconds_left(run.progress, rate=rate)
        parts = [] if share is None else [f"{share:4.0%}"]
        parts += [self.format_means(self._tally.report())]
        parts += [f"lr {run.updates.learning_rate:.2g}", self.format_speed(seconds)]
        if left is not None:
            parts += [f"{left // 60:.0f}:{left % 60:02.0f} left"]
        _log.info(", ".join(parts))
        self.clear()

    def _log_expected(self, run: Run) -> None:
        expected, warmup = run.updates.schedule.expected_updates, run.updates.schedule.warmup_updates
        if expected is None or expected == self._expected:
            return
        by_time = " in max_seconds" if self._by_time else ""
        _log.info("expected%s: %d updates, %d of them warm-up", by_time, expected, warmup)
        if warmup > expected / 2:
            _log.warning(
                "most of about %d updates are warm-up, %d: the learning rate stays small throughout the run; lower "
                "warmup_updates, or train longer",
                expected,
                warmup,
            )
        self._expected = expected


@contextmanager
def logged(*, show: bool) -> Iterator[None]:
    """Shows the library's log on standard error."""
    log, handler = logging.getLogger("polyencoder"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO if show else logging.ERROR)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def logged_by_default(*, show: bool) -> Iterator[None]:
    """`logged`, unless the program configures logging itself."""
    if logging.getLogger("polyencoder").hasHandlers():
        yield
    else:
        with logged(show=show):
            yield
