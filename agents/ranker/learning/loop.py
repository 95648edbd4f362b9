"""A run of ParlAI's training loop, as its agent sees it: how it begins, validates, and goes on after a kill."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from random import Random
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.learning.checkpoints import Checkpoint
from parlai.agents.ranker.learning.inputs import check_evaluation_data, check_metric, planned_updates
from parlai.agents.ranker.learning.optimizer import check_optimizer
from parlai.agents.ranker.learning.schedule import limit_warmup
from parlai.core.metrics import Metric
from parlai.core.opt import Opt
from parlai.utils.distributed import is_primary_worker, num_workers

from polyencoder.errors import CheckpointError, PolyencoderError, TrainingError
from polyencoder.evaluation.names import main_measures, summary
from polyencoder.training.distributed import gather_objects
from polyencoder.training.finite import DIVERGED
from polyencoder.training.lock import TrainingLock
from polyencoder.training.randomness import random_state, restore_random_state, seed_everything

__all__ = ["LoopRun", "trains"]

LOWER_IS_BETTER = ("loss", "ppl", "mean_rank")  # as ParlAI's training loop has it, whatever the mode says


def trains(opt: Opt) -> bool:
    """Whether an agent with these options learns."""
    datatype = opt.get("datatype") or ""
    return "train" in datatype and "evalmode" not in datatype and not opt.get("interactive_mode")


class LoopRun:
    """What a run of the training loop is, beyond the weights and ParlAI's own states.

    It is made before the model: the lock is taken, what the run will read is opened, chance is seeded. An agent that
    does not train has one as well, with nothing in it.

    Args:
        opt: of the agent, which get a shorter warm-up if the run is short.
        shared: whether this is a copy of an agent, which does not learn by itself.
        ranks: whether the agent ranks candidates: then its evaluations are rehearsed.

    Attributes:
        is_in_loop: whether ParlAI's training loop made the agent.
        planned_updates: how many the run has, if anybody knows.
        resumed_at: the updates after which it goes on, of a run that was begun before.
        is_best: whether ParlAI is going to save the model of this validation as the best.
        measures: of the best validation.
        has_ended: whether the agent was shut down.
    """

    def __init__(self, opt: Opt, *, shared: bool = False, ranks: bool = True) -> None:
        self._opt = opt
        self.trains = not shared and trains(opt)
        # ParlAI's training loop alone sets it; the options of some published models have it as well
        self.is_in_loop = self.trains and bool(opt.get("load_from_checkpoint"))
        self.planned_updates: int | None = None
        self.resumed_at: int | None = None
        self.is_best = self.has_validated = self.has_ended = False
        self.measures: dict[str, float] = {}
        self._best: float | None = None
        self._validated_at = 0
        self._lock = None
        if not self.trains:
            return
        check_optimizer(opt)
        if self.is_in_loop and os.path.isdir(path := opt.get("model_file") or ""):
            raise CheckpointError(
                f"--model-file {path} is a folder, which no run can write to: give another --model-file, and start "
                f"from this model with --init-model {path}"
            )
        self._lock = self._locked_model(opt)
        if self.is_in_loop:
            _prepare(opt)
            check_evaluation_data(opt, rehearse=ranks)
            self.planned_updates = planned_updates(opt)
            limit_warmup(opt, updates=self.planned_updates)
        if opt.get("seed") is not None:
            seed_everything(opt["seed"])  # ParlAI does so when the weights have been drawn already

    def _locked_model(self, opt: Opt) -> TrainingLock | None:
        """The lock of the model file that is trained: of the training loop's agent, and of the one that it ends with.

        Of several processes the first has it. If it cannot, all of them raise TrainingError.
        """
        evaluates_at_the_end = (opt.get("override") or {}).get("load_from_checkpoint") is False
        if not opt.get("model_file") or not (self.is_in_loop or evaluates_at_the_end):
            return None
        lock, problem = None, None
        if is_primary_worker():
            try:
                lock = TrainingLock.shared(opt["model_file"])
            except PolyencoderError as error:
                problem = error
        if problem := gather_objects(problem)[0]:
            raise problem
        return lock

    # ---- what a run that goes on needs

    def state(self, random: Random) -> dict[str, Any]:
        """In numbers, texts and containers of them; `random` is the agent's own generator."""
        return {
            "random": random_state(random),
            "best": self._best,
            "measures": self.measures,
            "validated_at": self._validated_at,
            "planned_updates": self.planned_updates,
        }

    def load_state(self, state: dict[str, Any], *, updates: int) -> None:
        """Put back what `state` gave, but chance, which is put back before the first batch: ParlAI seeds in between."""
        self.resumed_at = updates
        self._best, self._validated_at = state["best"], state["validated_at"]
        self.measures = state.get("measures") or {}  # not in earlier files

    @staticmethod
    def restore_randomness(state: dict[str, Any], random: Random) -> None:
        """Before the first batch; of several processes in the first, whose checkpoint it is."""
        if is_primary_worker():
            restore_random_state(state["random"], random)

    def is_over(self, updates: int) -> bool:
        """Whether a resumed run has had all of its updates: ParlAI's loop finds that out after a batch."""
        return self.resumed_at is not None and 0 < (self._opt.get("max_train_steps") or 0) <= updates

    # ---- validations

    def validated(self, report: dict[str, Any], *, updates: int) -> bool:
        """Take note of a validation; whether it is one that the schedule should hear of.

        Raises:
            ConfigError: it lacks the metric of `--validation-metric`.
            TrainingError: it gives no numbers, and would be that of the best model.
        """
        self._name_metric(report)
        for name in ("loss", self._opt.get("validation_metric")):
            value = _number(report.get(name))
            if value is not None and not math.isfinite(value):
                raise TrainingError(
                    f"validation after update {updates}: {name} is {value}: {DIVERGED}", argument="learning_rate"
                )
        premature = self._is_premature(updates)
        self.has_validated, self._validated_at = True, updates
        name = self._opt.get("validation_metric")
        value = _number(report.get(name))
        if value is not None:
            lower = name in LOWER_IS_BETTER or self._opt.get("validation_metric_mode") == "min"
            self.is_best = self._best is None or (value < self._best if lower else value > self._best)
            if self.is_best:
                self._best = value
        if self.is_best:
            self.measures = main_measures({name: _number(value) for name, value in report.items()})
        return not premature

    def keeps_best(self, path: str) -> bool:
        """Whether ParlAI is about to write the last weights over the best, since its resumed loop knows of none."""
        resumed = self.resumed_at is not None and path == self._opt.get("model_file")
        return resumed and self._best is not None and not self.is_best and os.path.exists(path)

    def _name_metric(self, report: dict[str, Any]) -> None:
        """Give ParlAI's loop the metric that it looks for, also under the name that it once had (`R@1/20`)."""
        report[self._opt.get("validation_metric") or "accuracy"] = report[check_metric(self._opt, report)]

    def say_what_was_made(self, next_steps: Sequence[str]) -> None:
        """After the evaluations that end ParlAI's loop. For them it has made its agent anew, of the best model."""
        is_last = not self.is_in_loop and (self._opt.get("override") or {}).get("load_from_checkpoint") is False
        if not (is_last and self.resumed_at is not None and is_primary_worker()):
            return
        path, measures = self._opt["model_file"], summary(self.measures)
        logging.success(f"{path}: the model after {self.resumed_at:,} updates{measures and f', {measures}'}")
        for line in next_steps:
            logging.info(line)
        self.resumed_at = None  # each of the worlds that were evaluated ends its agents

    def _is_premature(self, updates: int) -> bool:
        """Whether ParlAI validates only since a resumed loop has forgotten when it did so (`-vstep`).

        The plateau that the schedule looks for must not be that of one update.
        """
        steps = self._opt.get("validation_every_n_steps", -1)
        just_resumed = self.resumed_at is not None and updates <= self.resumed_at + 1
        return just_resumed and updates - self._validated_at < steps


def _number(value: Any) -> float | None:
    """What a report says of a metric, if it has it."""
    if isinstance(value, Metric):
        value = value.value()
    return float(value) if isinstance(value, int | float) else None


def _prepare(opt: Opt) -> None:
    """Before ParlAI's training loop loads anything: a checkpoint that is whole, or none."""
    model_file = opt.get("model_file")
    if not model_file:
        return
    override = opt.setdefault("override", {})
    checkpoint, best = Checkpoint(f"{model_file}.checkpoint"), Checkpoint(model_file)
    batch = (opt.get("batchsize") or 1) * num_workers()
    if opt.get("init_model") == checkpoint.path:
        ready = not is_primary_worker() or checkpoint.make_ready(batch=batch, otherwise=[best])
        if not gather_objects(ready)[0]:
            opt["init_model"] = override.get("init_model")
    elif is_primary_worker() and os.path.exists(model_file):
        best.make_ready(batch=batch)
    gather_objects(None)  # nobody reads before the first process is done
    # The loop makes its agent anew at the end, to evaluate the best model: not from the checkpoint. It passes on the
    # dictionary of what the command has set, this very one.
    override["load_from_checkpoint"] = False
