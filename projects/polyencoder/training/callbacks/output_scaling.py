"""`output_scaling` measured on the first batch, as Section 5.3 of the paper rescales its outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from polyencoder.data.collator import Batch
from polyencoder.modeling.output_scaling import BERT_OUTPUT_STD, measured_scaling
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import gather_objects

__all__ = ["MeasuredScaling"]

_log = logging.getLogger(__name__)


class MeasuredScaling(Callback):
    """Sets the model's `output_scaling` by the first batch of a run, in every process that of the first that has one.

    `on_measured` is called with the number.
    """

    name = "scaling"

    def __init__(self, on_measured: Callable[[float], None] | None = None) -> None:
        self._on_measured = on_measured
        self._scaling: float | None = None
        self._done = False

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if not self._done and self._scaling is not None:  # of the resumed run, of which only the weights were loaded
            self._done = True
            run.model.config = replace(run.model.config, output_scaling=self._scaling)
        if self._done or run.updates.count:
            return batch
        own = None
        if batch is not None:
            tokens = run.text.candidates(batch.pool.texts).to(batch.contexts.ids.device)
            own = measured_scaling(run.model, batch.contexts, tokens)
        scaling = next((value for value in gather_objects(own) if value is not None), None)
        if scaling is None:
            return batch
        self._done, self._scaling = True, scaling
        run.model.config = replace(run.model.config, output_scaling=scaling)
        _log.info(
            "output scaling %.4g: the outputs have a standard deviation of %.4g, BERT's of %g",
            scaling,
            BERT_OUTPUT_STD / scaling,
            BERT_OUTPUT_STD,
        )
        if self._on_measured is not None:
            self._on_measured(scaling)
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"scaling": self._scaling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scaling = state["scaling"]
