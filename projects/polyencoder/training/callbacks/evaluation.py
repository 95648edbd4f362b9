"""Evaluation during training, best-model selection and early stopping."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from polyencoder.checks import check_count
from polyencoder.data.example import Example
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import ConfigError
from polyencoder.evaluation import Tally, evaluate
from polyencoder.evaluation.names import format_line, format_name, select_main_measures
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import Processes, gather_objects
from polyencoder.training.objective import Outcome

_log = logging.getLogger(__name__)

LOWER_IS_BETTER = ("loss", "rank")


def evaluate_together(ranker: TextRanker, examples: Sequence[Example], *, processes: Processes) -> dict[str, float]:
    """Evaluates a ranker on examples, shared among the processes; the metrics are the same in all of them."""
    part = processes.take_share(examples)
    graded = any(example.labels is not None for example in examples)
    tally = Tally()
    for share in gather_objects(dict(evaluate(ranker, part, graded=graded).sums) if part else {}):
        tally.merge(share)
    return tally.report()


class Evaluation(Callback):
    """Evaluates every `every` training examples, and at the end of the run; the processes share the examples."""

    name = "evaluation"
    stored = ("_done", "_at", "report")

    def __init__(self, ranker: TextRanker, examples: Sequence[Example], *, every: int) -> None:
        self._ranker, self._examples = ranker, examples
        self._begin(every)

    def _begin(self, every: int) -> None:
        self._every = check_count("every", every)
        self._done = 0  # evaluations by `get_position`
        self._at = 0  # updates at the last evaluation: a model without updates is not evaluated
        self.report: dict[str, float] = {}
        """The last evaluation."""

    def get_position(self, run: Run) -> int:
        """The run's position, in the unit of `every`."""
        return run.progress.examples

    def measure(self, run: Run) -> dict[str, float]:
        """Evaluates the current model."""
        return evaluate_together(self._ranker, self._examples, processes=run.processes)

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        due = self.get_position(run) // self._every
        if due > self._done or run.is_over:
            self._evaluate(run)
        self._done = due

    def on_end(self, run: Run) -> None:
        self._evaluate(run)  # another callback may have ended the run

    def _evaluate(self, run: Run) -> None:
        if self._at != run.updates.count:
            self._at = run.updates.count
            self.report = self.measure(run)
            run.evaluated(self.report)


class KeepBest(Callback):
    """Saves the best model to a folder; ends the run after `patience` evaluations without improvement, if given.

    Ties are broken by higher MRR, then by lower loss, then by recency.
    """

    name = "best"
    stored = ("report", "trained", "_bad", "updates", "examples")

    def __init__(
        self, ranker: Any, folder: str | os.PathLike[str], *, metric: str = "hits@1", patience: int | None = None
    ) -> None:
        self._ranker, self._folder, self._metric, self._patience = ranker, folder, metric, patience
        self.report: dict[str, float] | None = None
        """The metrics of the saved model."""
        self.updates = self.examples = 0
        """The number of updates of the saved model; 0 before training."""
        self.trained: dict[str, float] | None = None
        """The best evaluation of a trained model, even if worse than before training."""
        self._bad = 0

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if self._metric not in report:
            names = ", ".join(report)
            raise ConfigError(f"no metric {self._metric!r} to choose the best model by; use one of {names}")
        order = self._get_sort_key(report)
        self._bad = 0 if order[0] > self._get_sort_key(self.trained)[0] else self._bad + 1
        if self._patience is not None and self._bad >= self._patience:
            run.stop(f"no better {format_name(self._metric, report)} in {self._bad} evaluations")
        if order[0] == -math.inf:
            return
        if order >= self._get_sort_key(self.trained):
            self.trained = dict(report)
        if order >= self._get_sort_key(self.report):
            self.keep(run, report)

    def keep(self, run: Run, report: Mapping[str, float]) -> None:
        """Saves the current model, with its metrics, until a better one replaces it."""
        self.report, self.updates, self.examples = dict(report), run.updates.count, run.progress.examples
        if run.processes.is_first:
            self._ranker.save_pretrained(self._folder)

    def _get_sort_key(self, report: Mapping[str, float] | None) -> tuple[float, ...]:
        """The sort key of models, higher is better; -inf without an evaluation or for a non-finite metric."""
        if report is None:
            return (-math.inf,)
        names = (self._metric, "mrr", "loss")
        values = (-report[name] if name in LOWER_IS_BETTER else report[name] for name in names if name in report)
        return tuple(value if math.isfinite(value) else -math.inf for value in values)

    def on_end(self, run: Run) -> None:
        if self.report is not None and run.processes.is_first:
            which = f"after {self.updates} of {run.updates.count} updates" if self.updates else "as before training"
            _log.info("kept: the model %s: %s", which, format_line(select_main_measures(self.report)))
