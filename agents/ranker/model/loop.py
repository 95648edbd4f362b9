"""The state of ParlAI's training loop, for its agent: checks at the start, validations, resumption after a kill."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from random import Random
from traceback import walk_stack
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.dialogue.sources import Source
from parlai.agents.ranker.model.checkpoints import restore_counters
from parlai.agents.ranker.model.open_data import check_evaluation_data, check_metric, compute_planned_updates
from parlai.core.metrics import dict_report
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainLoop
from parlai.utils.distributed import is_primary_worker, num_workers

from polyencoder.checkpoint import read_states
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError, TrainingError
from polyencoder.evaluation.names import format_summary, select_main_measures
from polyencoder.importing import is_parlai_model
from polyencoder.training.distributed import gather_objects
from polyencoder.training.lock import TrainingLock
from polyencoder.training.randomness import get_random_state, restore_random_state, seed_everything
from polyencoder.training.skipped import DIVERGED


def is_trained(opt: Opt) -> bool:
    """Whether an agent with these options trains."""
    datatype = opt.get("datatype") or ""
    return "train" in datatype and "evalmode" not in datatype and not opt.get("interactive_mode")


def is_display_script(opt: Opt) -> bool:
    """Whether these are options of ParlAI's `display_model`, by an option that otherwise only conversations have."""
    return "display_add_fields" in opt and not opt.get("interactive_mode")


def settle_datatype(opt: Opt) -> None:
    """Sets the datatype of `display_model`, which ParlAI takes from the model file. ConfigError: it would train."""
    if not is_display_script(opt):
        return
    if "datatype" not in (opt.get("override") or {}):
        opt["datatype"] = "valid"
    if is_trained(opt):
        raise ConfigError(f"-dt {opt['datatype']}: this would train; show training data as train:evalmode")


def find_train_loop_on_stack() -> TrainLoop | None:
    """The ParlAI training loop that creates an agent, if any; no agent gets it, so it is sought among the callers."""
    callers = (frame.f_locals.get("self") for frame, _ in walk_stack(None))
    return next((caller for caller in callers if isinstance(caller, TrainLoop)), None)


def get_checkpoint_path(opt: Opt) -> str:
    """The path of the trained model's checkpoints."""
    return f"{opt.get('model_file')}.checkpoint"


class TrainLoopState:
    """The state of a training loop beyond the weights and ParlAI's own states. In agents that do not train it is empty.

    Attributes:
        is_in_loop: whether ParlAI's training loop creates the agent for training.
        evaluates_the_best: whether it creates its last agent, with the best model.
        planned_updates: the number of updates of the run, if known.
        resumed_at: the updates done before a resumption.
    """

    def __init__(self, opt: Opt, *, shared: bool = False) -> None:
        self._opt = opt
        self.trains = not shared and is_trained(opt)
        self._loop = None if shared else find_train_loop_on_stack()
        has_begun = hasattr(self._loop, "train_time")  # set after its first agent
        self.evaluates_the_best = self.trains and has_begun
        self.is_in_loop = self.trains and self._loop is not None and not has_begun
        self.planned_updates: int | None = None
        self.resumed_at: int | None = None
        self.has_ended = False
        self._measures: dict[str, float] = {}  # of the loaded model's validation
        self._lock: TrainingLock | None = None

    def prepare(self, source: Source | None) -> None:
        """Locks the model file, opens the data (with `source`, of candidates), and seeds, before the model is built."""
        opt = self._opt
        if not self.trains:
            if self._loop is not None:
                raise ConfigError(f"-dt {opt['datatype']}: trains nothing; give -dt train, or evaluate by eval_model")
            return
        if opt.get("use_reply") == "model" and not opt.get("train_predict"):
            raise ConfigError("--use-reply model: in training it needs --train-predict true, which makes these replies")
        if self.is_in_loop and os.path.isdir(path := opt.get("model_file") or ""):
            raise CheckpointError(
                f"--model-file {path} is a folder: give another --model-file, and start "
                f"from this model with --init-model {path}"
            )
        if opt.get("model_file") and (self.is_in_loop or self.evaluates_the_best):
            self._lock = _lock_model(opt["model_file"])
        if self.is_in_loop:
            _check_checkpoint(opt)
            check_evaluation_data(opt, source=source)
            self.planned_updates = compute_planned_updates(opt)
        if opt.get("seed") is not None:
            seed_everything(opt["seed"])  # ParlAI would seed after the weights are initialized

    # ---- what a run needs to resume

    def get_state(self, random: Random) -> dict[str, Any]:
        """The state as numbers, texts and containers; `random` is the agent's own generator."""
        has_trained = self.is_in_loop and hasattr(self._loop, "_total_epochs")  # set after its first batch
        return {
            "random": get_random_state(random),
            "planned_updates": self.planned_updates,
            "counters": json.dumps(_get_counters(self._loop)) if self._loop and has_trained else None,
        }

    def load_state(self, path: str, state: dict[str, Any], *, updates: int) -> None:
        """Restores what `get_state` gave, and in the loop ParlAI's counters.

        Random states follow after ParlAI has seeded.
        """
        self.resumed_at = updates
        if self.planned_updates is None:
            self.planned_updates = state["planned_updates"]
        counters = json.loads(state["counters"] or "{}")
        if validations := counters.get("valid_reports"):
            self._measures = select_main_measures(validations[-1])
        if self.is_in_loop and counters and is_primary_worker():
            batch = (self._opt.get("batchsize") or 1) * num_workers()
            restore_counters(path, counters, batch=batch, missing_ok=path == get_checkpoint_path(self._opt))

    def resume(self, state: dict[str, Any], random: Random) -> None:
        """Restores, before the first batch, the random state (in the first process, which wrote it), and what ParlAI's
        loop forgets: whether the best model is saved, and the step of the last validation."""
        if is_primary_worker():
            restore_random_state(state["random"], random)
        if self._loop is not None and (reports := getattr(self._loop, "valid_reports", None)):
            self._loop.saved = os.path.exists(self._opt["model_file"])
            self._loop._last_valid_steps = reports[-1]["train_steps"]

    def is_over(self, updates: int) -> bool:
        """Whether a resumed run is complete, which ParlAI's loop would notice only after a batch."""
        return self.resumed_at is not None and 0 < (self._opt.get("max_train_steps") or 0) <= updates

    # ---- validations

    def check_validation(self, report: dict[str, Any], *, updates: int) -> None:
        """Checks a validation: ConfigError if it lacks the metric, TrainingError if that or the loss is not finite."""
        check_metric(self._opt, report)
        values = dict_report(report)
        for name in ("loss", self._opt.get("validation_metric") or "accuracy"):
            if not math.isfinite(values.get(name, 0.0)):
                raise TrainingError(
                    f"validation after update {updates}: {name} is {values[name]}: {DIVERGED}", argument="learning_rate"
                )

    def log_result(self, next_steps: Sequence[str]) -> None:
        """Logs the result after the final evaluations of ParlAI's loop, which creates an agent with the best model."""
        if not (self.evaluates_the_best and self.resumed_at is not None and is_primary_worker()):
            return
        path, measures = self._opt["model_file"], format_summary(self._measures)
        logging.success(f"{path}: the model after {self.resumed_at:,} updates{measures and f', {measures}'}")
        for line in next_steps:
            logging.info(line)
        self.resumed_at = None  # called for each evaluated world


def _get_counters(loop: TrainLoop) -> dict[str, Any]:
    return {
        "parleys": loop.parleys,
        "train_time": loop.train_time.time(),
        "train_steps": loop._train_steps,
        "total_epochs": loop._total_epochs,
        "train_reports": loop.train_reports,
        "valid_reports": loop.valid_reports,
        "best_valid": loop.best_valid,
        "impatience": loop.impatience,
    }


def _check_checkpoint(opt: Opt) -> None:
    """Raises CheckpointError if the checkpoint of a resumed run is damaged, or its best model so far."""
    path, model = get_checkpoint_path(opt), opt.get("model_file") or ""
    if opt.get("init_model") != path or not os.path.exists(path) or is_parlai_model(path):
        return
    for file, other in ((path, model), (model, path)):
        try:
            if os.path.exists(file):
                read_states(file)
        except CheckpointError as error:
            then = f"resumes from {other}" if os.path.exists(other) else "begins anew"
            raise CheckpointError(f"{error}. If it is damaged, delete it: the run then {then}") from None


def _lock_model(model_file: str) -> TrainingLock | None:
    """Locks the trained model file, in the first process; TrainingError in all of them if it fails."""
    lock, problem = None, None
    if is_primary_worker():
        try:
            lock = TrainingLock.get_or_create(model_file)
        except PolyencoderError as error:
            problem = error
    if problem := gather_objects(problem)[0]:
        raise problem
    return lock
