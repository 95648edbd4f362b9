"""`Trainer`: the training step, and the loop around it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from typing import Any

from polyencoder.data.collator import Batch, Collator
from polyencoder.data.epochs import InMemory, Reader, Source
from polyencoder.data.example import Example
from polyencoder.data.loader import iterate_batches, prefetch
from polyencoder.data.negatives import NegativeSampler
from polyencoder.encoding.protocol import Learner
from polyencoder.errors import ConfigError, InputError, TrainingError, get_first_line
from polyencoder.settings.training import TrainingConfig
from polyencoder.training.building import build_mined_negatives, build_objective, build_updates
from polyencoder.training.callbacks.base import Callback
from polyencoder.training.distributed import Processes, broadcast_weights, gather_objects
from polyencoder.training.objective import Objective, Outcome
from polyencoder.training.progress import Goal, Progress
from polyencoder.training.randomness import get_random_state, restore_random_state, seed_everything
from polyencoder.training.skipped import DIVERGED, SkippedBatches
from polyencoder.training.updates import OptimizerUpdates

_log = logging.getLogger(__name__)

SEED_STRIDE = 1_000_003  # between the seeds of two processes


class Trainer:
    """Trains a ranker. Objective, updates and callbacks can be given, or are built from the configuration.

    Examples:
        >>> Trainer(ranker, TrainingConfig(epochs=3), train=examples).fit()

    A framework with its own loop calls `step`, and needs no `train`.

    Args:
        ranker: its model is trained in place; `ranker.text` tokenizes.
        config: the hyperparameters.
        train: a list of examples, or a source.
        batches: instead of `train`, returns batches from the run's position on; called after a checkpoint was restored.
            Each process needs a batch in each step.
        sampler: samples candidates for examples without their own.
        callbacks: called in this order, after hard-negative mining.
        objective: what to minimise; None for the cross-entropy of the label, with the configured teacher.
        updates: the optimizer updates; None for the configured optimizer and schedule.

    Raises:
        ConfigError: an invalid configuration, for example a frozen model; two callbacks of one name.
    """

    def __init__(
        self,
        ranker: Learner,
        config: TrainingConfig | None = None,
        *,
        train: Sequence[Example] | Source[Example] | None = None,
        batches: Callable[[], Iterator[Batch]] | None = None,
        sampler: NegativeSampler | None = None,
        callbacks: Sequence[Callback] = (),
        objective: Objective | None = None,
        updates: OptimizerUpdates | None = None,
    ) -> None:
        self.ranker, self.config = ranker, config or TrainingConfig()
        self.callbacks = [*build_mined_negatives(ranker, self.config), *callbacks]
        names = Counter(callback.name for callback in self.callbacks if callback.name)
        if duplicate := next((name for name, count in names.items() if count > 1), None):
            raise ConfigError(
                f"{names[duplicate]} callbacks are named {duplicate!r}, the key of their state in checkpoints: give "
                "each its own"
            )
        self.model, self.text, self.device = ranker.model, ranker.text, ranker.device
        self.progress = Progress()
        self.processes = Processes.from_group()
        self.objective: Objective = objective or build_objective(ranker, self.config)
        self._source = InMemory(train) if isinstance(train, Sequence) else train
        if train is not None:
            seed_everything(self.config.seed)
        self._sampler, self._get_batches = sampler, batches
        epochs = None if self._source is None else self.config.epochs
        examples = None if self._source is None or epochs is None else epochs * self._source.count_items().examples
        self.goal = Goal(examples, self.config.max_updates, self.config.max_seconds)
        self.updates = updates or build_updates(ranker, self.config, goal=self.goal, processes=self.processes)
        with_turns = self.config.distillation.has_teacher
        self._collator = Collator(self.text, self.config.candidates, with_turns=with_turns)
        self.is_over = False
        """Whether the goal is reached, in all processes."""
        self.stopped: str | None = None
        """Why a callback ended the run; None if none did."""
        self._clock = time.monotonic()  # `progress.seconds` is counted up to here
        self._skipped = SkippedBatches(self.config.hard_negatives)

    # ---- the step

    def step(self, batch: Batch | None) -> Outcome | None:
        """Trains on a batch: forward and backward pass, update, progress and callbacks.

        Args:
            batch: on any device; None in a process without a batch, which still takes part in the collectives.

        Returns:
            The batch's outcome before the update; None if no process had an example.

        Raises:
            InputError: too many batches in a row without an example to train on.
            TrainingError: too many updates in a row that are not finite.
        """
        self.model.train()
        self.updates.zero_grad()
        examples = 0 if batch is None else len(batch)
        batch = None if batch is None else batch.to(self.device)
        for callback in self.callbacks:
            batch = callback.before_step(self, batch)
        with self.updates.autocast():
            outcome = self.objective(batch)
        self._skipped.count(is_skipped=outcome is None)
        if outcome is not None:
            self.updates.backward(outcome.loss)
            self.updates.check_losses(outcome.losses)
            self.updates.time = self.goal.compute_time(self.progress)
            self.updates.step()
            self.model.after_batch()
        self._count(examples)
        for callback in self.callbacks:
            callback.after_step(self, outcome)
        for callback in self.callbacks:
            callback.after_all(self)
        return outcome

    def _count(self, examples: int) -> None:
        """Counts a batch of `examples` examples in each process."""
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self._clock = now
        self.progress.batches += 1
        self.progress.examples += examples * self.processes.count
        self.progress.updates = self.updates.count
        self.is_over = self.goal.is_reached(self.progress)
        if self.goal.seconds is not None:  # the first process's clock counts
            self.progress.seconds, self.is_over = gather_objects((self.progress.seconds, self.is_over))[0]

    # ---- the loop

    def fit(self) -> Progress:
        """Trains until the goal is reached or a callback stops the run.

        Raises:
            TrainingError: training diverged.
            InputError: an invalid example, or nothing was trained.
        """
        if self._source is None and self._get_batches is None:
            raise ConfigError("nothing to train on: give the Trainer its training examples (train=...)")
        self.stopped = None
        broadcast_weights(self.model)
        try:
            self._fit()
            self.end()
        except BaseException:
            self._notify_failure()
            raise
        return self.progress

    def _notify_failure(self) -> None:
        """Calls `on_failure` of all callbacks; an error there is a warning beside the error that ended the run."""
        for callback in self.callbacks:
            try:
                callback.on_failure(self)
            except Exception as error:
                _log.warning("%s failed after the error of the run: %s", type(callback).__name__, get_first_line(error))

    def _fit(self) -> None:
        try:
            self.start()
            if self.progress.batches == 0:
                self._seed_apart()
            if not self._has_ended():
                self._run()
            self.check_has_trained()
            if self.updates.count == 0 and self.stopped is None:
                raise InputError(
                    f"nothing was trained: the run ended after {self.progress.batches} batches, before its first "
                    f"update, which takes the gradients of {self.config.accumulate}",
                    argument="accumulate",
                )
        finally:
            self.model.eval()

    def _seed_apart(self) -> None:
        """Seeds dropout differently in each process."""
        if (rank := self.processes.rank) > 0:
            seed_everything(self.config.seed + rank * SEED_STRIDE + self.updates.count)

    def start(self) -> None:
        """Calls `on_start`, before the first step; `fit` does so itself."""
        for callback in self.callbacks:
            callback.on_start(self)
        self._clock = time.monotonic()

    def check_has_trained(self) -> None:
        """Raises an error if there were batches and none of them changed the model.

        Raises:
            InputError: every batch was skipped.
            TrainingError: every update was skipped, as its loss or gradients were not finite.
        """
        if self.skipped and not self._skipped.has_trained:
            raise self._skipped.build_error(self.skipped)
        if (left_out := self.updates.left_out) and left_out == self.updates.count:
            raise TrainingError(
                f"nothing was trained: all of {left_out} updates were left out, as their losses or gradients were not "
                f"finite. {DIVERGED.capitalize()}"
            )

    def end(self) -> None:
        """Calls `on_end`, after the last step; `fit` does so itself."""
        for callback in self.callbacks:
            callback.on_end(self)

    def _run(self) -> None:
        with closing(prefetch(self._iter_batches())) as batches:  # also after an error, whose traceback keeps it open
            first = next(batches, None)
            # collective: a process with a batch would wait in its first step for a process without
            has_batch = gather_objects(first is not None)
            for batch in chain([first], batches) if all(has_batch) else ():
                self.step(batch)
                if self._has_ended():
                    return
        problem = f"the batches end after {self.progress.batches}"
        if not all(has_batch):
            problem = f"process {has_batch.index(False)} of {self.processes.count} has none"
        raise InputError(f"there are too few training examples: {problem}", argument="train")

    def _iter_batches(self) -> Iterator[Batch]:
        if self._get_batches is not None:
            yield from self._get_batches()
        elif self._source is not None:
            size = self.config.batch_size
            batches = iterate_batches(
                self._source,
                batch_size=size,
                seed=self.config.seed,
                sampler=self._sampler,
                reader=Reader(self.processes.rank, self.processes.count),
                seen=self.progress.batches * size,
            )
            yield from map(self._collator, batches)

    def _has_ended(self) -> bool:
        """Whether the goal is reached or a callback of any process has stopped the run; the same in all processes."""
        self.stopped = next((why for why in gather_objects(self.stopped) if why is not None), None)
        return self.stopped is not None or self.is_over

    def stop(self, why: str) -> None:
        """Ends the run after this step, in all processes, if any of them calls this."""
        self.stopped = self.stopped or why  # an evaluation that follows may call this again

    @property
    def skipped(self) -> int:
        """Batches skipped because no example had a wrong candidate."""
        return self.objective.skipped

    @property
    def skipped_examples(self) -> int:
        """Examples skipped, in these batches and in others."""
        return self.objective.skipped_examples

    def evaluated(self, report: Mapping[str, float]) -> None:
        """Passes an evaluation's metrics to all callbacks and the schedule."""
        if "loss" in report:
            self.updates.schedule.record_validation(report["loss"])
        for callback in self.callbacks:
            callback.on_evaluation(self, report)

    # ---- resuming

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from: tensors, numbers, texts and containers of them.

        Collective: every process must call it, and gets the random and callback states of all.
        """
        run = self.run_state()
        states = {"random": gather_objects(get_random_state()), "callbacks": gather_objects(run["callbacks"])}
        return {"model": self.model.get_trained_state(), **run, **states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `state_dict`."""
        self.model.load_trained_state(state["model"])
        self.load_run_state(state)
        states, rank = state["random"], self.processes.rank
        if rank < len(states):
            restore_random_state(states[rank])
        else:
            self._seed_apart()

    def run_state(self) -> dict[str, Any]:
        """`state_dict` without weights and random states, for a framework that saves these itself."""
        return {
            "updates": self.updates.state_dict(),
            "progress": asdict(self.progress),
            "stopped": self.stopped,
            "skipped": self.skipped,
            "skipped_examples": self.skipped_examples,
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks if callback.name},
        }

    def load_run_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `run_state`."""
        self.updates.load_state_dict(state["updates"])
        self.progress, self.stopped = Progress(**state["progress"]), state["stopped"]
        self.is_over = self.goal.is_reached(self.progress)
        self._skipped.has_trained = self.progress.updates > 0
        self.objective.skipped, self.objective.skipped_examples = state["skipped"], state["skipped_examples"]
        states = state["callbacks"]
        if isinstance(states, list):  # of all processes
            states = states[min(self.processes.rank, len(states) - 1)]
        for callback in self.callbacks:
            if callback.name in states:
                callback.load_state_dict(states[callback.name])
