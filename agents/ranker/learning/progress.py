"""One line at the bottom of a terminal: how fast training is, how well it goes, how long it will take."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from typing import Any, TextIO

import parlai.utils.logging as logging
from parlai.core.opt import Opt
from tqdm import tqdm

from polyencoder.training.progress import Goal

EVERY = 0.2  # seconds between two versions of the line
RECENT = 200  # batches that the rate is measured over
BAR = 8  # characters


def goal_of(opt: Opt, *, epoch: int | None) -> Goal:
    """When ParlAI's training loop ends, by the options; `epoch` is the number of examples in one, if it is known."""

    def limit(name: str) -> Any:
        return value if (value := opt.get(name) or -1) > 0 else None

    epochs = limit("num_epochs")
    examples = epochs * epoch if epochs and epoch else None
    return Goal(examples, limit("max_train_steps"), limit("max_train_time"))


class Rate:
    """Examples a second, of late. Time that is not spent on training does not count."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def add(self, now: float, examples: int) -> None:
        self._marks.append((now, examples))

    def pause(self) -> None:
        """Something else comes now, such as a validation."""
        self._marks.clear()

    def value(self) -> float:
        """0 before it is known."""
        if len(self._marks) < 2:
            return 0.0
        (first, _), (last, _) = self._marks[0], self._marks[-1]
        return sum(examples for _, examples in list(self._marks)[1:]) / max(last - first, 1e-9)


def line(*, rate: float, report: dict[str, float], seconds_left: float | None) -> str:
    """The line's text, from the numbers that are known: `report` has loss, R@1 and learning rate."""
    parts = [f"{rate:,.0f} examples/s"] if rate else []
    formats = {"loss": "loss {:.4g}", "R@1": "R@1 {:.3f}", "learning rate": "lr {:.2g}"}
    parts += [text.format(report[name]) for name, text in formats.items() if name in report]
    if seconds_left is not None:
        parts.append(f"{tqdm.format_interval(seconds_left)} left")
    return ", ".join(parts)


class ProgressLine:
    """The line itself. It gives way to whatever ParlAI logs, and leaves nothing behind."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._next = 0.0

    @staticmethod
    def is_wanted() -> bool:
        """Whether somebody is looking: files and pipes get ParlAI's log alone."""
        return sys.stderr.isatty()

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, text: str, *, share: float | None) -> None:
        """Show this text, behind a bar if the share of the run that is done is known."""
        self._next = time.monotonic() + EVERY
        if self._bar is None:
            self._bar = tqdm(total=1.0, leave=False, dynamic_ncols=True, file=self._stream, bar_format="{desc}")
            logging.logger.addFilter(self._give_way)
        room = shutil.get_terminal_size().columns - 1
        if share is not None:
            self._bar.n, room = share, room - BAR - len("100%|| ")
            self._bar.bar_format = f"{{percentage:3.0f}}%|{{bar:{BAR}}}| {{desc}}"
        self._bar.set_description_str(text[: max(0, room)])

    def hide(self) -> None:
        """Clear the line until it is shown again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            logging.logger.removeFilter(self._give_way)
            self._bar.close()
            self._bar = None

    def _give_way(self, _: Any) -> bool:
        self.hide()
        return True
