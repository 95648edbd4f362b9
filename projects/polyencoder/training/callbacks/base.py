"""`Callback`: the moments of a run at which a callback may act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from polyencoder.data.collator import Batch
from polyencoder.modeling import RankerModel
from polyencoder.text import TextEncoder
from polyencoder.training.distributed import Processes
from polyencoder.training.objective import Outcome
from polyencoder.training.progress import Goal, Progress
from polyencoder.training.updates import OptimizerUpdates

__all__ = ["Callback", "Run"]


class Run(Protocol):
    """The part of the `Trainer` that callbacks use."""

    model: RankerModel
    text: TextEncoder
    updates: OptimizerUpdates
    progress: Progress
    goal: Goal
    is_over: bool
    processes: Processes

    @property
    def skipped(self) -> int:
        """Batches that were left out, since there was nothing to choose in them."""
        ...

    @property
    def skipped_examples(self) -> int:
        """Examples that were left out, of these batches and of others."""
        ...

    def stop(self, why: str) -> None:
        """End the run after this step, in all processes, whichever of them calls this."""
        ...

    def evaluated(self, report: Mapping[str, float]) -> None:
        """Tell all callbacks of an evaluation."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Callback:
    """Hooks of a run, which do nothing by default; a subclass overrides some. They are called in the trainer's order.

    `name` is where a checkpoint has the callback's state.
    """

    name = ""

    def on_start(self, run: Run) -> None:
        """Before the first step; a checkpoint may put the run where another one stopped."""

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        """The batch to train on in the place of this one; None if this process has none in this step."""
        return batch

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        """After a batch, in which this process had no example if there is no outcome."""

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        """After an evaluation, whose metrics these are."""

    def on_end(self, run: Run) -> None:
        """After the last step, unless the run broke off with an error."""

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, in tensors, numbers, texts and containers of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
