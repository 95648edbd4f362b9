"""Evaluation during training, keeping the best model, and early stopping."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from polyencoder.data.example import Example
from polyencoder.errors import ConfigError
from polyencoder.evaluation import Tally, evaluate
from polyencoder.evaluation.names import main_measures
from polyencoder.ranker.protocol import TextRanker
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import Processes, gather_objects
from polyencoder.training.objective import Outcome

__all__ = ["Evaluation", "KeepBest", "evaluate_together"]

_log = logging.getLogger(__name__)

LOWER_IS_BETTER = ("loss", "rank")


def evaluate_together(ranker: TextRanker, examples: Sequence[Example], *, processes: Processes) -> dict[str, float]:
    """The metrics of a ranker over examples, of which each process takes its share; the same in all of them."""
    own = processes.share(examples)
    tally = Tally()
    for share in gather_objects(dict(evaluate(ranker, own).sums) if own else {}):
        tally.merge(share)
    return tally.report()


class Evaluation(Callback):
    """Ranks the validation examples every `every` examples of training, and at the end of the run.

    Args:
        ranker: the one that is trained.
        examples: to rank, each with its candidates; every process takes its share.
        every: examples of training between two evaluations.
    """

    name = "evaluation"

    def __init__(self, ranker: TextRanker, examples: Sequence[Example], *, every: int) -> None:
        self._ranker, self._examples = ranker, examples
        self._begin(every)

    def _begin(self, every: int) -> None:
        if every < 1:
            raise ConfigError(f"evaluation every {every} examples: give 1 or more")
        self._every = every
        self._done = 0  # evaluations by `position`
        self._at = 0  # updates at the last one; a model that has had none is not evaluated, nor kept as the best
        self.report: dict[str, float] = {}
        """The last one."""

    def position(self, run: Run) -> int:
        """The position in the run that decides when to evaluate next."""
        return run.progress.examples

    def measure(self, run: Run) -> dict[str, float]:
        """The metrics of the model now; each process takes its share of the examples."""
        return evaluate_together(self._ranker, self._examples, processes=run.processes)

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        due = self.position(run) // self._every
        if (due > self._done or run.is_over) and self._at != run.updates.count:
            self._at = run.updates.count
            self.report = self.measure(run)
            run.evaluated(self.report)
        self._done = due

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done, "at": self._at, "report": self.report}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._done, self._at, self.report = state["done"], state["at"], state["report"]


class KeepBest(Callback):
    """Keeps the best model in a folder, and stops early: ends a run that has stopped getting better.

    Of models with the same metric the one with the higher MRR is kept, then the one with the lower loss, then the
    later.

    Args:
        ranker: the one that is trained; it has `save_pretrained`.
        folder: where the best is.
        metric: by which it is the best.
        patience: how many evaluations in a row without a better metric end the run; None for no end.
    """

    name = "best"

    def __init__(
        self, ranker: Any, folder: str | os.PathLike[str], *, metric: str = "hits@1", patience: int | None = None
    ) -> None:
        self._ranker, self._folder, self._metric, self._patience = ranker, folder, metric, patience
        self.report: dict[str, float] | None = None
        """The metrics of the model that is kept."""
        self.updates = self.examples = 0
        """Of the run, when that was evaluated; 0 for the model before training."""
        self.trained: dict[str, float] | None = None
        """The best evaluation of the run, even where it is worse than that of the model before training."""
        self._bad = 0

    def begin(self, run: Run, report: Mapping[str, float]) -> None:
        """Keep the model before training, which has these metrics, until a better one comes."""
        self._keep(run, report)

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if self._metric not in report:
            known = ", ".join(report)
            raise ConfigError(f"no metric {self._metric!r} to choose the best model by; use one of {known}")
        order = self._order(report)
        self._bad = 0 if order[0] > self._order(self.trained)[0] else self._bad + 1
        if self._patience is not None and self._bad >= self._patience:
            run.stop(f"no better {self._metric} in {self._bad} evaluations")
        if order[0] == -math.inf:
            return
        if order >= self._order(self.trained):
            self.trained = dict(report)
        if order >= self._order(self.report):
            self._keep(run, report)

    def _keep(self, run: Run, report: Mapping[str, float]) -> None:
        self.report, self.updates, self.examples = dict(report), run.updates.count, run.progress.examples
        if run.processes.is_first:
            self._ranker.save_pretrained(self._folder)

    def _order(self, report: Mapping[str, float] | None) -> tuple[float, ...]:
        """The key that orders models, higher is better; -inf for no evaluation or a metric that is not finite."""
        if report is None:
            return (-math.inf,)
        names = (self._metric, "mrr", "loss")
        values = (-report[name] if name in LOWER_IS_BETTER else report[name] for name in names if name in report)
        return tuple(value if math.isfinite(value) else -math.inf for value in values)

    def on_end(self, run: Run) -> None:
        if self.report is not None and run.processes.is_first:
            which = f"after {self.updates} of {run.updates.count} updates" if self.updates else "as before training"
            measures = "  ".join(f"{name} {value:.3f}" for name, value in main_measures(self.report).items())
            _log.info("kept: the model %s: %s", which, measures)

    def state_dict(self) -> dict[str, Any]:
        own = {"report": self.report, "trained": self.trained, "bad": self._bad}
        return own | {"updates": self.updates, "examples": self.examples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.report, self._bad = state["report"], state["bad"]
        self.updates, self.examples = state["updates"], state["examples"]
        self.trained = state["trained"]
