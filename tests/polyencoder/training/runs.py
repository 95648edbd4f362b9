"""What tests of the trainer share: a few examples, short runs, and callbacks that listen, stop or kill."""

from __future__ import annotations

from dataclasses import replace

import torch

from polyencoder.data.example import Example
from polyencoder.settings.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest

ARCHITECTURES = ["bi", "poly", "cross", "late", "convert"]
# A ConveRT small enough to be trained in a test
CONVERT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "attention_limits": "2,8",
    "head_sizes": "24,24",
    "scale_batches": 10,
}
THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
WORDS = ["cats", "dogs", "snow", "math", "skis", "pets", "school", "mountains"]
EXAMPLES = [Example([f"do you like {word} ?"], f"i like {word} .") for word in WORDS]
VALID = [replace(example, candidates=[response.label for response in EXAMPLES]) for example in EXAMPLES]
CONFIG = TrainingConfig(
    epochs=None,
    max_updates=6,
    batch_size=4,
    fine_tuned="all",
    optimizer=OptimizerConfig(learning_rate=1e-3),
    schedule=ScheduleConfig(name="linear", warmup_updates=2),
)
# Adam makes a step of full size of a gradient that is rounding alone
PLAIN = replace(
    CONFIG,
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    schedule=ScheduleConfig(name="constant", warmup_updates=0),
)


class Losses(Callback):
    """Remembers the mean loss of each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def after_step(self, run, outcome) -> None:
        self.values.append(float(outcome.losses.mean()))


class Kill(Callback):
    """Interrupts a run."""

    def __init__(self, after: int) -> None:
        self._after = after

    def after_step(self, run, outcome) -> None:
        if run.updates.count == self._after:
            raise KeyboardInterrupt


class Stop(Callback):
    """Ends a run after so many batches."""

    def __init__(self, *, after: int) -> None:
        self._after = after

    def after_step(self, run, outcome) -> None:
        if run.progress.batches == self._after:
            run.stop("enough")


def begun(ranker):
    """The ranker as in the middle of a training: the weights of its score's terms are not a new model's."""
    if ranker.model.has_new_terms:
        with torch.no_grad():
            ranker.model.term_weights.fill_(0.3)
    return ranker


def weights(model) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def callbacks(ranker, folder, *others) -> list[Callback]:
    best = KeepBest(ranker, folder / "best")
    return [Evaluation(ranker, VALID, every=8), best, *others, Checkpoints(folder / "checkpoint.pt", settings={"n": 1})]
