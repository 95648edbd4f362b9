"""A run that was killed and is started again with the same command goes on as if nothing had happened."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from random import Random
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.learning.checkpoints import Checkpoint, write_states
from parlai.agents.ranker.learning.inputs import check_evaluation_data, planned_updates
from parlai.agents.ranker.learning.optimizer import check_optimizer
from parlai.agents.ranker.learning.schedule import limit_warmup
from parlai.agents.ranker.learning.step import LearningAgent
from parlai.core.exceptions import StopTrainException
from parlai.core.metrics import Metric
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from parlai.utils.distributed import is_primary_worker, num_workers

from polyencoder.errors import CheckpointError, PolyencoderError, TrainingError
from polyencoder.files import replacing
from polyencoder.modeling.finite import check_finite
from polyencoder.training.distributed import gather_objects
from polyencoder.training.finite import DIVERGED
from polyencoder.training.lock import TrainingLock
from polyencoder.training.randomness import random_state, restore_random_state, seed_everything

TRAINING_KEY = "training"  # where a checkpoint has what only its own run needs
LOWER_IS_BETTER = ("loss", "ppl", "mean_rank")  # as ParlAI's training loop has it, whatever the mode says


class ResumableAgent(LearningAgent):
    """Saves and restores what training depends on, beyond the weights and ParlAI's own states."""

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._restored: dict[str, Any] | None = None  # until the first batch: ParlAI seeds in between
        self._checkpoints: dict[str, Checkpoint] = {}
        self._unwritten: dict[str, str] = {}  # path -> why its last version could not be written
        self._resumed_at: int | None = None
        self._best: float | None = None
        self._is_best = False
        self._has_validated = False
        self._validated_at = 0
        self._is_over = False
        # ParlAI's training loop alone sets it; the options of some published models have it as well
        self._is_in_loop = not shared and bool(opt.get("load_from_checkpoint")) and self._trains(opt)
        if not shared and self._trains(opt):
            check_optimizer(opt)
        self._lock = self._locked_model(opt) if not shared else None
        if self._is_in_loop:
            _prepare(opt)
            check_evaluation_data(opt)
            self.planned_updates = planned_updates(opt)
            limit_warmup(opt, updates=self.planned_updates)
        seed = opt.get("seed")
        if seed is not None and not shared and self._trains(opt):
            seed_everything(seed)  # ParlAI does so when the weights have been drawn already
        super().__init__(opt, shared)
        if seed is not None:
            self.random = Random(seed)

    def _locked_model(self, opt: Opt) -> TrainingLock | None:
        """The lock of the model file that is trained: of the training loop's agent, and of the one that it ends with.

        Of several processes the first has it. If it cannot, all of them raise TrainingError.
        """
        evaluates_at_the_end = (opt.get("override") or {}).get("load_from_checkpoint") is False and self._trains(opt)
        if not opt.get("model_file") or not (self._is_in_loop or evaluates_at_the_end):
            return None
        lock, problem = None, None
        if is_primary_worker():
            try:
                lock = TrainingLock.of(opt["model_file"])
            except PolyencoderError as error:
                problem = error
        if problem := gather_objects(problem)[0]:
            raise problem
        return lock

    @staticmethod
    def _trains(opt: Opt) -> bool:
        datatype = opt.get("datatype") or ""
        return "train" in datatype and "evalmode" not in datatype and not opt.get("interactive_mode")

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        states = super().state_dict()
        if hasattr(self, "optimizer"):
            states[TRAINING_KEY] = self.training_state()
        return states

    def training_state(self) -> dict[str, Any]:
        """What a run needs to go on, in tensors, numbers, texts and containers of them: all that may be unpickled."""
        gradients = [p.grad for p in self.model.parameters()] if self._number_grad_accum else []
        return {
            "random": random_state(self.random),
            "accumulated": {"batches": self._number_grad_accum, "gradients": gradients},  # --update-freq
            "best": self._best,
            "validated_at": self._validated_at,
            "planned_updates": self.planned_updates,
            "unwritten": self._unwritten.get(str(self.opt.get("model_file"))),
        }

    def save(self, path: str | None = None) -> None:
        """Write a checkpoint beside its name and rename it. If it cannot be written, training goes on all the same."""
        path = path or self.opt.get("model_file")
        if not path:
            return
        if path == self.opt.get("model_file") and not self._is_in_loop:
            self.refuse_to_overwrite()
        if self._best_is_kept(path):
            logging.info(f"{path} stays: it has the best validation of this run")
            return
        check_finite(self.ranker.named_parameters(), origin=f"{path} is not written")
        try:
            if not os.path.exists(f"{path}.dict"):
                self.dict.write(f"{path}.dict")
            with replacing(f"{path}.opt") as temporary:
                self.opt.save(str(temporary))
            if self._is_loops_own(path):
                self._checkpoint_at(path).write(self.state_dict(), keep_previous=self._is_resumed_from(path))
            else:
                write_states(self.state_dict(), path)
        except OSError as error:
            message = f"{path} could not be written: {error.strerror}"
            if self._is_over or not self._trains(self.opt):
                raise CheckpointError(message) from error
            logging.error(f"{message}. Training goes on; what was saved before is untouched")
            self._unwritten[path] = message
        else:
            self._unwritten.pop(path, None)

    def _is_loops_own(self, path: str) -> bool:
        """Whether ParlAI's training loop saves, which writes its counters next: a checkpoint, or the best model."""
        return self._is_in_loop and (self._has_validated or path.endswith(".checkpoint"))

    def _checkpoint_at(self, path: str) -> Checkpoint:
        model_file = self.opt.get("model_file")
        spare = [f"{model_file}.checkpoint"] if path == model_file else []
        return self._checkpoints.setdefault(path, Checkpoint(path, spare=spare))

    def _is_resumed_from(self, path: str) -> bool:
        """Whether a restart reads this file: not the best model's where there are checkpoints."""
        model_file = self.opt.get("model_file")
        return path != model_file or not os.path.exists(f"{model_file}.checkpoint")

    def _best_is_kept(self, path: str) -> bool:
        """Whether ParlAI is about to write the last weights over the best, since its resumed loop knows of none."""
        resumed = self._resumed_at is not None and path == self.opt.get("model_file")
        return resumed and self._best is not None and not self._is_best and os.path.exists(path)

    def shutdown(self) -> None:
        super().shutdown()
        self._is_over = True
        for checkpoint in self._checkpoints.values():
            checkpoint.seal()
        if self._is_in_loop and sys.exc_info()[0] is None:
            self.check_has_learnt()
        self._check_that_the_best_is_written()

    def _check_that_the_best_is_written(self) -> None:
        """At the end of training: ParlAI believes that what it has asked for is there, and would evaluate it."""
        path = str(self.opt.get("model_file"))
        message = self._unwritten.pop(path, None)
        if message is None:
            return
        there = "an earlier model stays there" if os.path.exists(path) else "no model is there"
        last = f"{path}.checkpoint"
        if os.path.exists(last):
            there += f"; {last}, the last checkpoint, is whole, and the same command goes on from it"
        message = f"{message}, when it was the best of this run: {there}. Make room and train again"
        if sys.exc_info()[1] is not None:  # training ends with another error
            logging.error(message)
        else:
            raise CheckpointError(message)

    # ---- going on

    def load(self, path: str) -> dict[str, Any]:
        states = super().load(path)
        is_whole = "number_training_updates" in states  # not after ParlAI's vacuum script
        if is_whole and self._trains(self.opt) and not self._is_finetune:
            self._restored = states.get(TRAINING_KEY)
        if self._restored:
            self._resumed_at = states["number_training_updates"]
            self._best, self._validated_at = self._restored["best"], self._restored["validated_at"]
            if unwritten := self._restored.get("unwritten"):
                self._unwritten[str(self.opt["model_file"])] = unwritten
        return states

    def build_lr_scheduler(self, states: dict[str, Any] | None = None, hard_reset: bool = False) -> None:
        """As it was in the run, for the agent too that ParlAI makes of the best model at its end."""
        if self.planned_updates is None and states:
            self.planned_updates = (states.get(TRAINING_KEY) or {}).get("planned_updates")
        super().build_lr_scheduler(states, hard_reset)

    def train_step(self, batch: Batch) -> Output | None:
        for checkpoint in self._checkpoints.values():
            checkpoint.seal()
        if self._restored:
            self.restore_training_state(self._restored)
            self._restored = None
            if 0 < (self.opt.get("max_train_steps") or 0) <= self._number_training_updates:
                return None  # the run was over: ParlAI's loop finds that out after a batch
        self._is_best = False
        return super().train_step(batch)

    def update_params(self) -> None:
        """As ParlAI's. The end of a schedule is left to its loop, which counts `--max-train-steps` as well.

        Were the loop broken off in its last step, that would be missing in the counters and reports; and they would
        be empty after a resumed run without any other step.
        """
        with suppress(StopTrainException):
            super().update_params()

    def restore_training_state(self, state: dict[str, Any]) -> None:
        """Before the first batch of a resumed run: put back what `training_state` gave."""
        if is_primary_worker():  # the checkpoint is its own
            restore_random_state(state["random"], self.random)
        self._number_grad_accum = state["accumulated"]["batches"]
        for parameter, gradient in zip(self.model.parameters(), state["accumulated"]["gradients"], strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter)

    def receive_metrics(self, metrics_dict: dict[str, Any]) -> None:
        """After a validation: the schedule's step, and whether ParlAI is going to save this model as the best.

        Raises TrainingError where that would be a model whose validation gives no numbers.
        """
        for name in ("loss", self.opt.get("validation_metric")):
            value = _number(metrics_dict.get(name))
            if value is not None and not math.isfinite(value):
                raise TrainingError(
                    f"validation after update {self._number_training_updates}: {name} is {value}: {DIVERGED}"
                )
        if not self._is_premature():
            super().receive_metrics(metrics_dict)
        self._has_validated = True
        self._validated_at = self._number_training_updates
        name = self.opt.get("validation_metric")
        value = _number(metrics_dict.get(name))
        if value is None:
            return
        lower = name in LOWER_IS_BETTER or self.opt.get("validation_metric_mode") == "min"
        self._is_best = self._best is None or (value < self._best if lower else value > self._best)
        if self._is_best:
            self._best = value

    def _is_premature(self) -> bool:
        """Whether ParlAI validates only since a resumed loop has forgotten when it did so (`-vstep`).

        The plateau that the schedule looks for must not be that of one update.
        """
        steps = self.opt.get("validation_every_n_steps", -1)
        just_resumed = self._resumed_at is not None and self._number_training_updates <= self._resumed_at + 1
        return just_resumed and self._number_training_updates - self._validated_at < steps


def _number(value: Any) -> float | None:
    """What a report says of a metric, if it has it."""
    if value is None:
        return None
    return float(value.value() if isinstance(value, Metric) else value)


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
