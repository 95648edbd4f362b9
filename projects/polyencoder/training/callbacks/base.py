"""`Callback`: the hooks of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from polyencoder.data.collator import Batch
from polyencoder.modeling.base import RankerModel
from polyencoder.settings.training import TrainingConfig
from polyencoder.text import TextEncoder
from polyencoder.training.distributed import Processes
from polyencoder.training.objective import Outcome
from polyencoder.training.progress import Goal, Progress
from polyencoder.training.updates import OptimizerUpdates


class Run(Protocol):
    """The part of the `Trainer` that callbacks use."""

    model: RankerModel
    text: TextEncoder
    config: TrainingConfig
    updates: OptimizerUpdates
    progress: Progress
    goal: Goal
    is_over: bool
    processes: Processes

    @property
    def skipped(self) -> int:
        """Batches skipped because no example had a wrong candidate."""
        ...

    @property
    def skipped_examples(self) -> int:
        """Examples skipped, in these batches and in others."""
        ...

    def stop(self, why: str) -> None:
        """Ends the run after this step, in all processes, if any of them calls this."""
        ...

    def evaluated(self, report: Mapping[str, float]) -> None:
        """Passes an evaluation's metrics to all callbacks."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Callback:
    """Hooks of a run, no-ops by default, called in the trainer's order of callbacks.

    `name` is the key of its state in a checkpoint, `stored` the attributes that are its state, by their names without
    a leading underscore: tensors, numbers, texts and containers of them.
    """

    name = ""
    stored: tuple[str, ...] = ()

    def on_start(self, run: Run) -> None:
        """Before the first step; a checkpoint may restore a run here."""

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        """Returns the batch to train on, possibly changed; None if this process has none in this step."""
        return batch

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        """After a step; no outcome if this process had no example."""

    def after_all(self, run: Run) -> None:
        """After `after_step` of all callbacks, when the state of the run is whole."""

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        """After an evaluation, with its metrics."""

    def on_end(self, run: Run) -> None:
        """After the last step, unless the run failed. An error here fails the run: the callbacks after it end so."""

    def on_failure(self, run: Run) -> None:
        """After an error, of a step or of another callback, which ends the run; also after this one's `on_end`."""

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from."""
        return {name.removeprefix("_"): getattr(self, name) for name in self.stored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `state_dict`."""
        for name in self.stored:
            setattr(self, name, state[name.removeprefix("_")])
