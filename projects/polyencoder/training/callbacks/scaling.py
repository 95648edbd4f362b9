"""`output_scaling` measured on the first batch, as Section 5.3 of the paper rescales its outputs."""

from __future__ import annotations

import logging
from dataclasses import replace

from polyencoder.data.collator import Batch
from polyencoder.scaling import BERT_OUTPUT_STD, measured_scaling
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import gather_objects

__all__ = ["MeasuredScaling"]

_log = logging.getLogger(__name__)


class MeasuredScaling(Callback):
    """Sets the model's `output_scaling` by the first batch of a run, in every process that of the first one."""

    def __init__(self) -> None:
        self._done = False

    def before_step(self, run: Run, batch: Batch) -> Batch:
        if run.updates.count or self._done:
            return batch
        self._done = True
        tokens = run.text.candidates(batch.pool.texts).to(batch.contexts.ids.device)
        scaling = gather_objects(measured_scaling(run.model, batch.contexts, tokens))[0]
        run.model.config = replace(run.model.config, output_scaling=scaling)
        _log.info(
            "output scaling %.4g: the outputs have a standard deviation of %.4g, BERT's of %g",
            scaling,
            BERT_OUTPUT_STD / scaling,
            BERT_OUTPUT_STD,
        )
        return batch
