"""What happens beside the steps of a pre-training: held-out text is evaluated, the encoder kept, a line logged."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from polyencoder.data.collator import Batch
from polyencoder.modeling.mode import in_evaluation
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch, pair_batch
from polyencoder.pretraining.objective import MASKED, NEXT, Pretraining
from polyencoder.pretraining.rate import step_flops
from polyencoder.text.tokens import token_batches
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.curve import RATE, LearningCurve
from polyencoder.training.distributed import Processes, gather_objects
from polyencoder.training.objective import Outcome

__all__ = ["HeldOut", "KeepEncoder", "PretrainingCurve", "PretrainingLog"]

_log = logging.getLogger(__name__)


class HeldOut(Callback):
    """Asks for masked words and next utterances of held-out examples, always the same ones, every so many updates.

    Reports `masked_loss`, its exponential `perplexity`, `masked_accuracy`, `next_loss`, `next_accuracy`, and `loss`,
    the sum of both losses.

    Args:
        objective: computes the losses. examples: each is asked for both. inputs: makes sequences of them.
        tokens: of a batch. every: updates.
    """

    name = "held out"

    def __init__(
        self,
        objective: Pretraining,
        examples: Sequence[PairExample],
        inputs: PairInputs,
        *,
        tokens: int,
        every: int,
    ) -> None:
        self._objective, self._every, self._at = objective, every, -1
        self._processes = Processes.of_this_group()
        self.batches = _held_out_batches(examples, inputs, tokens=tokens)
        self.report: dict[str, float] = {}
        """The last one."""

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        due = run.updates.count % self._every == 0 and run.updates.count > 0 and not run.updates.is_under_way
        if (due or run.is_over) and self._at != run.updates.count:
            self._at = run.updates.count
            self.report = self.measure(run.updates.autocast)
            run.evaluated(self.report)

    @torch.no_grad()
    def measure(self, autocast: Callable[[], Any]) -> dict[str, float]:
        """The metrics of the model as it is; each process takes its share of the batches."""
        sums: defaultdict[str, float] = defaultdict(float)
        model = self._objective.model
        device = next(model.parameters()).device
        with in_evaluation(model):
            for batch in self._processes.share(self.batches):
                with autocast():
                    name, losses, right = self._objective.losses(batch.to(device))
                sums[f"{name}_loss"] += losses.double().sum().item()
                sums[f"{name}_accuracy"] += int(right.sum())
                sums[name] += len(losses)
        total: defaultdict[str, float] = defaultdict(float)
        for share in gather_objects(dict(sums)):
            for name, value in share.items():
                total[name] += value
        report = {}
        for name in (MASKED, NEXT):
            for measure in (f"{name}_loss", f"{name}_accuracy"):
                report[measure] = total[measure] / max(1, total[name])
        report["perplexity"] = math.exp(min(report[f"{MASKED}_loss"], 700.0))
        return {"loss": report[f"{MASKED}_loss"] + report[f"{NEXT}_loss"], **report}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at, "report": self.report}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._at, self.report = state["at"], state["report"]


def _held_out_batches(examples: Sequence[PairExample], inputs: PairInputs, *, tokens: int) -> list[PairBatch]:
    batches = []
    for make in (inputs.masked, inputs.next):
        made = [make(example, np.random.default_rng(example.key)) for example in examples]
        for places in token_batches([len(one.ids) for one in made], max_tokens=tokens):
            batches.append(pair_batch([made[place] for place in places], pad_id=inputs.text.pad_id))
    return [batch for batch in batches if batch.has_choice]


class KeepEncoder(Callback):
    """Writes the encoder after each evaluation: the last one is the best of a corpus that is not read out."""

    def __init__(self, save: Callable[[Mapping[str, float]], None]) -> None:
        self._save = save

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if run.processes.is_first:
            self._save(report)


class PretrainingLog(Callback):
    """A line every few seconds: losses and accuracies of training, and tokens a second beside the machine's products.

    Args:
        every_seconds: between two lines; None for evaluations alone.
        rate: floating-point operations a second of the machine (`product_rate`).
    """

    name = "pretraining log"

    def __init__(self, *, every_seconds: float | None = 10.0, rate: float | None = None) -> None:
        self._every, self._rate = every_seconds, rate
        self.tokens = 0
        """Of this process, padding not counted; of those that ran before too."""
        self._clear()

    def _clear(self) -> None:
        self._last = self._until = time.monotonic()
        self._step_tokens, self._flops = 0, 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def on_start(self, run: Run) -> None:
        self._clear()

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if isinstance(batch, PairBatch):
            tokens = int(batch.contexts.mask.sum())
            self.tokens, self._step_tokens = self.tokens + tokens, self._step_tokens + tokens
            model: Any = run.model
            self._flops += step_flops(model, batch)
        return batch

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is not None:
            for name, (value, count) in outcome.sums.items():
                self._sums[name] += value
                self._counts[name] += count
        self._until = time.monotonic()  # an evaluation may follow
        if self._every is not None and self._until - self._last >= self._every:
            self._say(run)

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if self._every is not None and self._counts:
            self._say(run)
        _log.info("after %d updates, of held-out text: %s", run.updates.count, _shown(report))
        self._clear()

    def _say(self, run: Run) -> None:
        seconds = max(self._until - self._last, 1e-9)
        share, left = run.goal.share(run.progress), run.goal.seconds_left(run.progress, rate=0.0)
        parts = [] if share is None else [f"{share:4.0%}"]
        parts += [_shown({name: value / max(1, self._counts[name]) for name, value in self._sums.items()})]
        parts += [f"lr {run.updates.learning_rate:.2g}", f"{self._step_tokens / seconds:,.0f} tokens/s"]
        if self._rate:
            parts += [f"{self._flops / self._rate / seconds:.0%} of the rate of large products"]
        if left is not None:
            parts += [f"{left // 60:.0f}:{left % 60:02.0f} left"]
        _log.info(", ".join(parts))
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": gather_objects(self.tokens)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tokens = state["tokens"][Processes.of_this_group().rank]


class PretrainingCurve(LearningCurve):
    """Losses and accuracies of both objectives."""

    panels = (f"{MASKED} loss", f"{MASKED} accuracy", f"{NEXT} loss", f"{NEXT} accuracy", RATE)

    def of_training(self, outcome: Outcome) -> dict[str, float]:
        return {name.replace("_", " "): value / max(1, count) for name, (value, count) in outcome.sums.items()}

    def of_evaluation(self, report: Mapping[str, float]) -> dict[str, float | None]:
        return {panel: report.get(panel.replace(" ", "_")) for panel in self.panels}


def _shown(report: Mapping[str, float]) -> str:
    names = {
        f"{MASKED}_loss": "masked words' loss {:.3f}",
        "perplexity": "perplexity {:.1f}",
        f"{MASKED}_accuracy": "accuracy {:.3f}",
        f"{NEXT}_loss": "next utterance's loss {:.3f}",
        f"{NEXT}_accuracy": "accuracy {:.3f}",
    }
    return ", ".join(text.format(report[name]) for name, text in names.items() if name in report)
