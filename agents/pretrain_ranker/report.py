"""Reports of pre-training: ParlAI metrics of both objectives, and rendered predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from parlai.agents.ranker.model.build_trainer import Report
from parlai.core.metrics import AverageMetric, GlobalAverageMetric, GlobalTimerMetric, Metric
from parlai.core.torch_generator_agent import PPLMetric
from parlai.utils.distributed import is_primary_worker
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch, PairInput, pair_batch, pair_input
from polyencoder.pretraining.masking import IGNORED
from polyencoder.pretraining.objective import MASKED, NEXT
from polyencoder.pretraining.start import Pretrained
from polyencoder.training.callbacks import Run
from polyencoder.training.objective import Outcome


class BothLosses(Metric):
    """The sum of the mean losses of masked words and next utterances: `loss`, as in `polyencoder pretrain`."""

    __slots__ = ("_masked", "_next")

    def __init__(self, masked: AverageMetric, following: AverageMetric) -> None:
        self._masked, self._next = masked, following

    @property
    def macro_average(self) -> bool:
        return True

    def __add__(self, other: BothLosses | None) -> BothLosses:
        return self if other is None else BothLosses(self._masked + other._masked, self._next + other._next)

    def value(self) -> float:
        return float(self._masked.value() + self._next.value())


def example_metrics(
    batch: PairBatch, masked: tuple[Tensor, Tensor], following: tuple[Tensor, Tensor] | None
) -> list[dict[str, Metric]]:
    """ParlAI metrics of each example, from losses and correctness [words], [batch] (None: nothing to choose from)."""
    assert batch.targets is not None
    words = (batch.targets != IGNORED).sum(1).tolist()
    found: list[dict[str, Metric]] = []
    for losses, right in zip(*(values.double().cpu().split(words) for values in masked), strict=True):
        loss, n = float(losses.sum()), len(losses)
        found.append(
            {
                f"{MASKED}_loss": AverageMetric(loss, n),
                f"{MASKED}_accuracy": AverageMetric(int(right.sum()), n),
                "ppl": PPLMetric(loss, n),
            }
        )
    if following is None:
        return found
    for metrics, loss, is_right in zip(found, *(one.tolist() for one in following), strict=True):
        next_loss = AverageMetric(loss)
        metrics["loss"] = BothLosses(metrics[f"{MASKED}_loss"], next_loss)
        metrics |= {f"{NEXT}_loss": next_loss, f"{NEXT}_accuracy": AverageMetric(int(is_right))}
    return found


class TrainedWordsReport(Report):
    """Adds a training batch's results to ParlAI's metrics, and counts this process's `tokens`, without padding."""

    name, tokens = "tokens", 0
    kept = ("tokens",)

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if batch is not None:
            tokens = int(batch.contexts.mask.sum())
            self.tokens += tokens
            self._metrics.add("tpb", GlobalAverageMetric(tokens, float(is_primary_worker())))
            self._metrics.add("tps", GlobalTimerMetric(tokens))
        return batch

    def note_batch(self, outcome: Outcome) -> None:
        if f"{MASKED}_loss" in outcome.sums:
            self._metrics.add("ppl", PPLMetric(*outcome.sums[f"{MASKED}_loss"]))


def main_measures(report: Mapping[str, float]) -> dict[str, float]:
    """The main metrics of a report."""
    names = ("loss", "ppl", f"{MASKED}_accuracy", f"{NEXT}_accuracy")
    return {name: report[name] for name in names if name in report}


@torch.no_grad()
def render_prediction(pretrained: Pretrained, inputs: PairInputs, pair: PairExample) -> str:
    """Renders an example's predicted words, and the probability of its response and of another one."""
    model, text = pretrained.model, pretrained.text
    asked = _batch(pretrained, [inputs.masked(pair, np.random.default_rng(pair.key))])
    assert asked.targets is not None
    chosen = asked.targets != IGNORED
    guessed = model.masked_logits(asked.contexts, chosen).argmax(1).tolist()
    words = []
    for guess, target in zip(guessed, asked.targets[chosen].tolist(), strict=True):
        found, expected = (text.tokenizer.decode([token]).strip() for token in (guess, target))
        words.append(found if guess == target else f"{found} (not {expected})")
    shown = f"masked words: {', '.join(words)}"
    responses = [pair.label, *([pair.other] if pair.other is not None else [])]
    apart = model.next_utterance is None
    if apart and len(responses) == 1:  # no choice
        return shown
    both = [pair_input(text, pair.turns, one, longest=pretrained.longest, apart=apart) for one in responses]
    if apart:
        sequences = [both[0].ids[: both[0].context], *(one.ids[one.context :] for one in both)]
        tokens = text.pad(sequences).to(pretrained.device)
        likely = model.response_scores(tokens, contexts=1)[0].softmax(0).tolist()
    else:
        batch = _batch(pretrained, [replace(one, follows=True) for one in both])
        likely = model.next_scores(batch.contexts).float().sigmoid().tolist()
    said = "; ".join(f"{chance:.0%} {one!r}" for chance, one in zip(likely, responses, strict=True))
    return f"{shown}; follows: {said}"


def _batch(pretrained: Pretrained, inputs: list[PairInput]) -> PairBatch:
    return pair_batch(inputs, pad_id=pretrained.text.pad_id).to(pretrained.device)
