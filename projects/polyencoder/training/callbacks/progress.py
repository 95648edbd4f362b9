"""Progress line in a terminal: speed, loss, R@1, learning rate, time left."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.log import format_rate, measure_batch
from polyencoder.training.objective import Outcome

EVERY = 0.2  # seconds between two versions of the line
RECENT = 200  # batches that its numbers are measured over
BAR = 8  # characters


class _Step(NamedTuple):
    time: float
    examples: int  # of all processes
    measures: Mapping[str, tuple[float, int]]  # of this process


class ProgressLine(Callback):
    """Progress bar on `stream` (default: standard error), erased at the end; log lines of `handlers` go above it."""

    def __init__(self, *, handlers: Sequence[logging.Handler] = (), stream: TextIO | None = None) -> None:
        self._handlers, self._stream = handlers, stream or sys.stderr
        self._steps: deque[_Step] = deque(maxlen=RECENT)
        self._examples = 0
        self._bar: tqdm[Any] | None = None
        self._next = 0.0

    @staticmethod
    def has_terminal() -> bool:
        """Whether standard error is a terminal; files and pipes get log lines only."""
        return sys.stderr.isatty()

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        now, examples = time.monotonic(), run.progress.examples - self._examples
        self._examples = run.progress.examples
        self._steps.append(_Step(now, examples, {} if outcome is None else measure_batch(outcome)))
        if now >= self._next:
            self._next = now + EVERY
            self._show(self.format_line(run), run.goal.compute_share(run.progress))

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        self._steps.clear()  # evaluation time does not count

    def on_end(self, run: Run) -> None:
        if self._bar is not None:
            for handler in self._handlers:
                handler.removeFilter(self._give_way)
            self._bar.close()
            self._bar = None

    on_failure = on_end

    def compute_rate(self) -> float:
        """Recent examples per second; 0 before it is known."""
        if len(self._steps) < 2:
            return 0.0
        seconds = self._steps[-1].time - self._steps[0].time
        return sum(step.examples for step in list(self._steps)[1:]) / max(seconds, 1e-9)

    def format_line(self, run: Run) -> str:
        """The line, with the numbers known: `1,184 examples/s, loss 1.342, R@1 0.478, lr 5e-05, 03:12 left`."""
        rate = self.compute_rate()
        parts = [format_rate(rate)] if rate else []
        for name, template in (("loss", "loss {:.4g}"), ("R@1", "R@1 {:.3f}")):
            values = [step.measures[name] for step in self._steps if name in step.measures]
            if values:
                parts += [template.format(sum(value for value, _ in values) / sum(count for _, count in values))]
        parts += [f"lr {run.updates.learning_rate:.2g}"]
        if (left := run.goal.estimate_seconds_left(run.progress, rate=rate)) is not None:
            parts += [f"{tqdm.format_interval(left)} left"]
        return ", ".join(parts)

    def _show(self, text: str, share: float | None) -> None:
        if self._bar is None:
            self._bar = tqdm(total=1.0, leave=False, dynamic_ncols=True, file=self._stream, bar_format="{desc}")
            for handler in self._handlers:
                handler.addFilter(self._give_way)
        room = shutil.get_terminal_size().columns - 1
        if share is not None:
            self._bar.n, room = share, room - BAR - len("100%|| ")
            self._bar.bar_format = f"{{percentage:3.0f}}%|{{bar:{BAR}}}| {{desc}}"
        self._bar.set_description_str(text[: max(0, room)])

    def _give_way(self, _: logging.LogRecord) -> bool:
        if self._bar is not None:
            self._bar.clear()
        return True
