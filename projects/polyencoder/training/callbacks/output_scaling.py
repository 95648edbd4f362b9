"""Measures `output_scaling` on a run's first batch, so that outputs are as large as BERT's.

Weights of a pre-training without weight decay have grown, those of the last layer most, and the logits of an attention
over outputs grow with the square of the outputs: the softmax of a poly-encoder then gives nearly everything to one
code, and trains slowly. Section 5.3 of Humeau et al. (ICLR 2020) therefore rescales the last layer so that its output
deviates as much as BERT's. Here the layer is unchanged and `RankerConfig.output_scaling` multiplies its outputs, which
is the same function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.text import TokenBatch
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import gather_objects

_log = logging.getLogger(__name__)

BERT_OUTPUT_STD = 0.5
"""The standard deviation of BERT's outputs, to one digit.

The paper gives no number. A post-layer-norm encoder ends in a layer normalisation, whose outputs have a standard
deviation near the root mean square of its gains: 1 before training, less after it. Those outputs of bert-base-uncased
that the documentation of transformers prints for "Hello, my dog is cute" (36 numbers) have 0.46; all-MiniLM-L6-v2 has
0.43 on utterances of ConvAI2, with gains of 0.64.
"""


class MeasuredScaling(Callback):
    """Measures `output_scaling` on the first batch, in one process for all, and calls `on_measured` with it."""

    name = "scaling"
    stored = ("_scaling",)

    def __init__(self, on_measured: Callable[[float], None] | None = None) -> None:
        self._on_measured = on_measured
        self._scaling: float | None = None
        self._done = False

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        new = None
        if self._scaling is None and not run.updates.count:
            new = self._scaling = self._measure(run, batch)
        if self._scaling is not None and not self._done:  # a resumed run loaded the weights alone
            self._done = True
            run.model.config = replace(run.model.config, output_scaling=self._scaling)
        if new is not None and self._on_measured is not None:
            self._on_measured(new)
        return batch

    def _measure(self, run: Run, batch: Batch | None) -> float | None:
        measured = None
        if batch is not None:
            tokens = run.text.batch_candidates(batch.pool.texts).to(batch.contexts.ids.device)
            measured = measure_scaling(run.model, batch.contexts, tokens)
        scaling = next((value for value in gather_objects(measured) if value is not None), None)
        if scaling is not None:
            what = "output scaling %.4g: the outputs have a standard deviation of %.4g, BERT's of %g"
            _log.info(what, scaling, BERT_OUTPUT_STD / scaling, BERT_OUTPUT_STD)
        return scaling


@torch.no_grad()
def compute_output_std(model: RankerModel, contexts: TokenBatch, candidates: TokenBatch) -> float:
    """The standard deviation of all outputs of both towers, each on its own kind of text, before scaling."""
    if model.towers is None:
        raise ConfigError("only rankers around a backbone have outputs whose deviation can be measured")
    inputs = zip(model.towers, (contexts, candidates), strict=True)
    with in_evaluation(model):  # dropout would count as deviation
        outputs: list[Tensor] = [tower(tokens)[tokens.mask].float().flatten() for tower, tokens in inputs]
    return float(torch.cat(outputs).std())


def measure_scaling(model: RankerModel, contexts: TokenBatch, candidates: TokenBatch) -> float:
    """The `output_scaling` that gives a batch's outputs the standard deviation of BERT's, or an error."""
    if model.config.normalize:
        raise ConfigError(
            "output_scaling is auto, but normalize already scales vectors to length 1; give a number",
            argument="output_scaling",
        )
    deviation = compute_output_std(model, contexts, candidates)
    if not 0 < deviation < float("inf"):
        raise InputError(
            f"output_scaling is auto, but the outputs have a standard deviation of {deviation}; give a number, or "
            "other weights to start from",
            argument="output_scaling",
        )
    return BERT_OUTPUT_STD / deviation
