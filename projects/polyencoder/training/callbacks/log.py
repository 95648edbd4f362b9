"""Logging: a line now and then, and one for each evaluation."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from polyencoder.evaluation import ranks
from polyencoder.evaluation.names import main_measures
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.objective import Outcome

__all__ = ["Log"]

_log = logging.getLogger(__name__)


class Log(Callback):
    """Logs evaluations, and between them the averages of the batches since the last line.

    R@1 in training is that among the candidates of a batch, as the line says; it does not compare with evaluations.

    Args:
        every_seconds: between two lines of training; None for evaluations alone, beside a progress line.
    """

    def __init__(self, *, every_seconds: float | None = 10.0) -> None:
        self._every = every_seconds
        self._last, self._examples, self._loss, self._hits, self._candidates = time.monotonic(), 0, 0.0, 0, 0

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.pool.labels is not None and len(outcome):
            self._examples += len(outcome)
            self._loss += float(outcome.losses.sum())
            self._hits += int((ranks(outcome.scores, outcome.pool.labels) == 1).sum())
            self._candidates = outcome.scores.size(1)
        if self._every is not None and self._examples and time.monotonic() - self._last >= self._every:
            self._say(run)

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if self._every is not None and self._examples:
            self._say(run)
        measures = "  ".join(f"{name} {value:.3f}" for name, value in main_measures(report).items())
        _log.info("after %d updates: %s", run.updates.count, measures)
        self._last = time.monotonic()

    def _say(self, run: Run) -> None:
        seconds = time.monotonic() - self._last
        rate = self._examples / max(seconds, 1e-9)
        share, left = run.goal.share(run.progress), run.goal.seconds_left(run.progress, rate=rate)
        parts = [] if share is None else [f"{share:4.0%}"]
        parts += [f"loss {self._loss / self._examples:.4g}"]
        parts += [f"R@1 of the batch {self._hits / self._examples:.3f} (among {self._candidates})"]
        parts += [f"lr {run.updates.learning_rate:.2g}"]
        parts += [f"{rate:,.0f} examples/s"]
        if left is not None:
            parts += [f"{left // 60:.0f}:{left % 60:02.0f} left"]
        _log.info(", ".join(parts))
        self._last, self._examples, self._loss, self._hits = time.monotonic(), 0, 0.0, 0
