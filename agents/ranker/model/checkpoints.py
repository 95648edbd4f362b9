"""Writes model files and the checkpoints of ParlAI's training loop atomically, also to full disks.

ParlAI's loop writes `X`, then its counters (examples seen, validations, patience) to `X.trainstats`, in place. After a
kill between the two they would not match. So the checkpoint contains the counters, too, and `X.trainstats` is written
from it before ParlAI reads it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.core.opt import Opt

from polyencoder.checkpoint import write_states
from polyencoder.errors import CheckpointError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.lora import select_adapted_tensors
from polyencoder.settings.training import LoraConfig
from polyencoder.storage.files import atomic_write, discard_leftovers, write_text

COUNTERS = ".trainstats"
NOT_BEGUN = "{}"  # counters of a run that has not begun, for ParlAI
_TENSORS = "adapted"  # the adapters, and the weights beside them
_SCALE = "lora_scale"  # the factor of the matrices' product


def write_checkpoint(path: str, states: Mapping[str, Any], *, in_loop: bool = False) -> None:
    """Writes states atomically, or raises OSError; `in_loop`: ParlAI's loop writes the counters next."""
    for suffix in ("", ".opt", COUNTERS):
        discard_leftovers(path + suffix)
    if in_loop and not os.path.exists(path + COUNTERS):
        write_text(path + COUNTERS, NOT_BEGUN)  # without this file a model counts as a copy, which starts a new run
    write_states(path, states)


def restore_counters(path: str, counters: Mapping[str, Any], *, batch: int, missing_ok: bool = False) -> None:
    """Writes a checkpoint's counters for ParlAI, with the epochs that an uninterrupted run would have.

    ParlAI adds up the epochs of each part of a run as fractions. After a few parts rounding would make the sum miss an
    epoch's end, and the run validate or stop an update later; so the parts are replaced by a single fraction. A copy of
    a model, without counters beside it, gets none without `missing_ok`. batch: the examples of all processes.
    """
    if not missing_ok and not os.path.exists(path + COUNTERS):
        return
    epochs, batches = counters.get("total_epochs", 0), counters.get("parleys", 0)
    if epochs > 0 and batches:
        exact = batches * batch / max(1, round(batches * batch / epochs))
        if math.isclose(exact, epochs, rel_tol=1e-9):  # not with batches of many sizes
            counters = {**counters, "total_epochs": exact}
    write_text(path + COUNTERS, json.dumps(counters, indent=4))


def get_adapters_state(model: RankerModel, lora: LoraConfig) -> dict[str, Any]:
    """LoRA's adapters, as a part of a run's state: its model file has them merged, so that anything can read it."""
    return {_TENSORS: select_adapted_tensors(model), _SCALE: lora.scale}


def restore_adapters(model: RankerModel, lora: LoraConfig, state: Mapping[str, Any], *, path: str) -> None:
    """Restores the adapters of a resumed run, if it has any. CheckpointError if it began with others, or without."""
    stored = state.get(_TENSORS, {})
    current = select_adapted_tensors(model) if model.is_adapted else {}
    if not (current or stored):
        return
    shapes, stored_shapes = ({name: tensor.shape for name, tensor in tensors.items()} for tensors in (current, stored))
    if shapes != stored_shapes or state.get(_SCALE, lora.scale) != lora.scale:
        raise CheckpointError(
            f"--model-file {path}: this run began with another --lora, --lora-alpha or --lora-targets: give the same, "
            "or train another model file"
        )
    model.load_state_dict(stored, strict=False)


class Saving:
    """Writes the files of a model, and remembers in `unwritten` why the best model could not be written."""

    def __init__(self, model_file: str | None) -> None:
        self._model_file = model_file
        self.unwritten: str | None = None

    def write(
        self,
        path: str,
        states: Callable[[], Mapping[str, Any]],
        *,
        opt: Opt,
        dictionary: RankerDictionary,
        in_loop: bool,
        continues: bool,
    ) -> None:
        """Writes a model, its options and its dictionary, each atomically. CheckpointError: it could not be written."""
        message = None
        try:
            if not dictionary.is_written(f"{path}.dict"):
                dictionary.write(f"{path}.dict")
            with atomic_write(f"{path}.opt") as temporary:
                opt.save(str(temporary))
            write_checkpoint(path, states(), in_loop=in_loop)
        except OSError as error:
            message = f"{path} could not be written: {error.strerror}"
            if not continues:
                raise CheckpointError(message) from error
            logging.error(f"{message}. Training continues; what was saved before is untouched")
        if path == self._model_file:
            self.unwritten = message

    def check_best_is_written(self) -> None:
        """Raises CheckpointError if the best model of the training is missing; only logs it after another error."""
        message, self.unwritten = self.unwritten, None
        if message is None:
            return
        left = "an earlier model stays there" if os.path.exists(str(self._model_file)) else "no model is there"
        last = f"{self._model_file}.checkpoint"
        if os.path.exists(last):
            left += f"; {last}, the last checkpoint, is whole, and the same command resumes from it"
        message = f"{message}, when it was the best of this run: {left}. Make room and train again"
        if sys.exc_info()[1] is not None:
            logging.error(message)
        else:
            raise CheckpointError(message)
