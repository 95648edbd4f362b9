"""Callbacks of pre-training: held-out evaluation, saving the encoder, log, learning curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from polyencoder.data.collator import Batch
from polyencoder.evaluation import Tally
from polyencoder.modeling.mode import in_evaluation
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import PairBatch, pair_batch
from polyencoder.pretraining.masking import IGNORED
from polyencoder.pretraining.objective import MASKED, NEXT, PretrainingObjective
from polyencoder.text.batches import token_batches
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.curve import RATE, LearningCurve
from polyencoder.training.callbacks.evaluation import Evaluation
from polyencoder.training.callbacks.log import Log
from polyencoder.training.distributed import Processes, gather_objects

SIDE, ROUNDS = 1_024, 8  # of square matrices; more rounds on a GPU, whose clock rises slowly


def step_flops(model: PretrainingModel, batch: PairBatch) -> float:
    """FLOPs of a training step, for model FLOPs utilization (MFU): six per parameter and token.

    Two for the product, four for its two gradients. All tokens go through the layers, those that are asked for through
    the head and the table of words; attention is left out.
    """
    through_layers = sum(parameter.numel() for parameter in model.encoder.layers().parameters())
    flops = 6.0 * through_layers * int(batch.contexts.mask.sum())
    if batch.targets is not None:
        head = sum(parameter.numel() for parameter in model.masked_words.parameters())
        words = model.masked_words.bias.numel() * model.encoder.dim
        flops += 6.0 * (head + words) * int((batch.targets != IGNORED).sum())
    return flops


@torch.no_grad()
def matmul_throughput(
    device: torch.device, *, dtype: torch.dtype = torch.float32, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Measures peak matmul throughput in FLOP/s: the best of a few runs."""
    rounds, side = (ROUNDS, SIDE) if device.type == "cpu" else (10 * ROUNDS, 8 * SIDE)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(rounds):
        _wait(device)
        start = clock()
        torch.mm(left, right)
        _wait(device)
        best = min(best, clock() - start)
    return 2 * side**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
        self._objective, self._processes = objective, Processes.of_this_group()
        self.batches = _held_out_batches(examples, inputs, tokens=tokens)

    def position(self, run: Run) -> int:
        return run.updates.count

    @torch.no_grad()
    def measure(self, run: Run) -> dict[str, float]:
        local, tally = Tally(), Tally()
        model = self._objective.model
        device = next(model.parameters()).device
        with in_evaluation(model):
            for batch in self._processes.share(self.batches):
                with run.updates.autocast():
                    name, losses, right = self._objective.losses(batch.to(device))
                measured = {"loss": losses.double().sum().item(), "accuracy": int(right.sum())}
                local.merge({f"{name}_{measure}": (value, len(losses)) for measure, value in measured.items()})
        for share in gather_objects(dict(local.sums)):
            tally.merge(share)
        names = [f"{name}_{measure}" for name in (MASKED, NEXT) for measure in ("loss", "accuracy")]
        report = dict.fromkeys(names, 0.0) | tally.report()
        report["perplexity"] = math.exp(min(report[f"{MASKED}_loss"], 700.0))
        return {"loss": report[f"{MASKED}_loss"] + report[f"{NEXT}_loss"], **report}


def _held_out_batches(examples: Sequence[PairExample], inputs: PairInputs, *, tokens: int) -> list[PairBatch]:
    batches = []
    for make in (inputs.masked, inputs.next):
        made = [make(example, np.random.default_rng(example.key)) for example in examples]
        for places in token_batches([len(one.ids) for one in made], max_tokens=tokens):
            batches.append(pair_batch([made[place] for place in places], pad_id=inputs.text.pad_id))
    return [batch for batch in batches if batch.has_choice]


class KeepEncoder(Callback):
    """Saves the encoder after each evaluation: the corpus is not exhausted, so the last one is the best."""

    def __init__(self, save: Callable[[Mapping[str, float]], None]) -> None:
        self._save = save

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        if run.processes.is_first:
            self._save(report)


class PretrainingLog(Log):
    """Logs losses and accuracies of training, tokens per second, and MFU.

    The tokens are those of all processes, whose batches are of one size; the share is this process's. peak: the
    machine's peak matmul throughput in FLOP/s (`matmul_throughput`).
    """

    name = "pretraining log"

    def __init__(self, *, every_seconds: float | None = 10.0, peak: float | None = None) -> None:
        super().__init__(every_seconds=every_seconds)
        self._peak = peak
        self.tokens = 0
        """Tokens of this process and of those that ran before, without padding."""

    def clear(self) -> None:
        super().clear()
        self._step_tokens, self._flops = 0, 0.0

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        super().before_step(run, batch)
        if isinstance(batch, PairBatch):
            tokens = int(batch.contexts.mask.sum())
            self.tokens += tokens
            self._step_tokens += tokens * run.processes.count
            model: Any = run.model
            self._flops += step_flops(model, batch)
        return batch

    def shown_report(self, report: Mapping[str, float]) -> str:
        return f"held-out text: {self.shown_means(report)}"

    def shown_means(self, means: Mapping[str, float]) -> str:
        names = {
            f"{MASKED}_loss": "masked words' loss {:.3f}",
            "perplexity": "perplexity {:.1f}",
            f"{MASKED}_accuracy": "accuracy {:.3f}",
            f"{NEXT}_loss": "next utterance's loss {:.3f}",
            f"{NEXT}_accuracy": "accuracy {:.3f}",
        }
        return ", ".join(text.format(means[name]) for name, text in names.items() if name in means)

    def shown_speed(self, seconds: float) -> str:
        utilization = "" if self._peak is None else f", {self._flops / self._peak / seconds:.0%} MFU"
        return f"{self._step_tokens / seconds:,.0f} tokens/s{utilization}"

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": gather_objects(self.tokens)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tokens = state["tokens"][Processes.of_this_group().rank]


class PretrainingCurve(LearningCurve):
    """The learning curve of losses and accuracies of both objectives."""

    panels = (f"{MASKED}_loss", f"{MASKED}_accuracy", f"{NEXT}_loss", f"{NEXT}_accuracy", RATE)
