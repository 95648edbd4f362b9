"""Callbacks of pre-training: held-out evaluation, saving the encoder, log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from polyencoder.data.collator import Batch
from polyencoder.evaluation import Tally
from polyencoder.modeling.mode import in_evaluation
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch, build_pair_batch
from polyencoder.pretraining.objective import MASKED, NEXT, PretrainingObjective
from polyencoder.text.batches import cut_into_batches
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.curve import RATE
from polyencoder.training.callbacks.evaluation import Evaluation
from polyencoder.training.callbacks.log import Log
from polyencoder.training.distributed import Processes, gather_objects

PANELS = (f"{MASKED}_loss", f"{MASKED}_accuracy", f"{NEXT}_loss", f"{NEXT}_accuracy", RATE)
"""The measures of the learning curve."""


class HeldOut(Evaluation):
    """Evaluates both objectives on fixed held-out examples, in batches of `tokens`, every `every` updates.

    Reports `masked_loss`, its exponential `perplexity`, `masked_accuracy`, `next_loss`, `next_accuracy`, and `loss`,
    the sum of both losses.
    """

    name = "held out"

    def __init__(
        self,
        objective: PretrainingObjective,
        examples: Sequence[PairExample],
        inputs: PairInputs,
        *,
        tokens: int,
        every: int,
    ) -> None:
        self._begin(every)
        self._objective, self._processes = objective, Processes.from_group()
        self.batches = _build_held_out_batches(examples, inputs, tokens=tokens)

    def get_position(self, run: Run) -> int:
        return run.updates.count

    @torch.no_grad()
    def measure(self, run: Run) -> dict[str, float]:
        local, tally = Tally(), Tally()
        model = self._objective.model
        device = next(model.parameters()).device
        with in_evaluation(model):
            for batch in self._processes.take_share(self.batches):
                with run.updates.autocast():
                    name, losses, right = self._objective.compute_losses(batch.to(device))
                measured = {"loss": losses.double().sum().item(), "accuracy": int(right.sum())}
                local.merge({f"{name}_{measure}": (value, len(losses)) for measure, value in measured.items()})
        for share in gather_objects(dict(local.sums)):
            tally.merge(share)
        names = [f"{name}_{measure}" for name in (MASKED, NEXT) for measure in ("loss", "accuracy")]
        report = dict.fromkeys(names, 0.0) | tally.report()
        report["perplexity"] = math.exp(min(report[f"{MASKED}_loss"], 700.0))
        return {"loss": report[f"{MASKED}_loss"] + report[f"{NEXT}_loss"], **report}


def _build_held_out_batches(examples: Sequence[PairExample], inputs: PairInputs, *, tokens: int) -> list[PairBatch]:
    batches = []
    for make in (inputs.mask, inputs.draw_next):
        pairs = [make(example, np.random.default_rng(example.key)) for example in examples]
        for rows in cut_into_batches([len(pair.ids) for pair in pairs], max_tokens=tokens):
            batches.append(build_pair_batch([pairs[row] for row in rows], pad_id=inputs.text.pad_id))
    return [batch for batch in batches if batch.has_choice]


class KeepEncoder(Callback):
    """Saves the encoder after each evaluation: the corpus is not exhausted, so the last one is the best."""

    def __init__(self, save: Callable[[Mapping[str, float]], None]) -> None:
        self._save = save

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if run.processes.is_first:
            self._save(report)


class PretrainingLog(Log):
    """Logs losses and accuracies of training, and tokens per second: of all processes, whose batches have one size."""

    name = "pretraining log"
    stored = ("tokens",)

    def __init__(self, *, every_seconds: float | None = 10.0) -> None:
        super().__init__(every_seconds=every_seconds)
        self.tokens = 0
        """Tokens of this process and of those that ran before, without padding."""

    def clear(self) -> None:
        super().clear()
        self._step_tokens = 0

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        super().before_step(run, batch)
        if isinstance(batch, PairBatch):
            tokens = int(batch.contexts.mask.sum())
            self.tokens += tokens
            self._step_tokens += tokens * run.processes.count
        return batch

    def format_report(self, report: Mapping[str, float]) -> str:
        return f"held-out text: {self.format_means(report)}"

    def format_means(self, means: Mapping[str, float]) -> str:
        names = {
            f"{MASKED}_loss": "masked words' loss {:.3f}",
            "perplexity": "perplexity {:.1f}",
            f"{MASKED}_accuracy": "accuracy {:.3f}",
            f"{NEXT}_loss": "next utterance's loss {:.3f}",
            f"{NEXT}_accuracy": "accuracy {:.3f}",
        }
        return ", ".join(text.format(means[name]) for name, text in names.items() if name in means)

    def format_speed(self, seconds: float) -> str:
        return f"{self._step_tokens / seconds:,.0f} tokens/s"
