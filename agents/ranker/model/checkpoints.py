"""What an agent writes: its model file and, in ParlAI's training loop, checkpoints, on disks that may be full.

ParlAI's loop writes `X`, then its counters (examples seen, validations, patience) as `X.trainstats`, in place. A kill
between the two would leave the states of one moment with the counters of another. So the counters are in the checkpoint
too, and `X.trainstats` is written from there before ParlAI reads it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.core.opt import Opt

from polyencoder.errors import CheckpointError
from polyencoder.storage.files import atomic_write, discard_leftovers, write_text

__all__ = ["Saving", "restore_counters", "write_checkpoint"]

COUNTERS = ".trainstats"
NOT_BEGUN = "{}"  # counters which ParlAI takes for those of a run that has not begun


def write_checkpoint(path: str, states: Mapping[str, Any], *, in_loop: bool = False) -> None:
    """Write the states of a model beside their name and rename them; `in_loop`: ParlAI's loop writes counters next.

    Raises:
        OSError: they could not be written; what was there is unchanged.
    """
    for suffix in ("", ".opt", COUNTERS):
        discard_leftovers(path + suffix)
    if in_loop and not os.path.exists(path + COUNTERS):
        write_text(path + COUNTERS, NOT_BEGUN)  # a model without this file is a copy, from which a new run begins
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        try:
            torch.save(states, file)
        except RuntimeError as error:  # torch reports a full disk as a RuntimeError
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def restore_counters(path: str, counters: Mapping[str, Any], *, batch: int, missing_ok: bool = False) -> None:
    """Write the counters of a checkpoint where ParlAI reads them, with the epochs of a run that was never stopped.

    ParlAI adds the epochs of each part of a run as fractions. After a few parts their sum would miss a goal, such as an
    epoch's end, by a hair, and the run validate or stop an update later. What is added to a single fraction does not.

    Args:
        path: of the checkpoint; a copy of a model, without counters beside it, gets none.
        counters: those in the checkpoint.
        batch: the examples of a batch, those of all processes together.
        missing_ok: write them even if there are none beside it, since this is no copy.
    """
    if not missing_ok and not os.path.exists(path + COUNTERS):
        return
    epochs, batches = counters.get("total_epochs", 0), counters.get("parleys", 0)
    if epochs > 0 and batches:
        exact = batches * batch / max(1, round(batches * batch / epochs))
        if math.isclose(exact, epochs, rel_tol=1e-9):  # not with batches of many sizes
            counters = {**counters, "total_epochs": exact}
    write_text(path + COUNTERS, json.dumps(counters, indent=4))


class Saving:
    """The files of one model: what was written, and what could not be.

    Args:
        model_file: of the agent, if it has one.

    Attributes:
        unwritten: why the best model of the run is missing, if it could not be written; checkpoints keep it.
    """

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
        """Write a model, its options and its dictionary, each beside its name, and rename it.

        Args:
            path: of the model.
            states: gives what is written.
            in_loop: whether ParlAI's training loop asks for it.
            continues: whether training continues if the disk is full.

        Raises:
            CheckpointError: it could not be written.
        """
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

    def check_that_the_best_is_written(self) -> None:
        """At the end of training: ParlAI believes that what it has asked for is there, and would evaluate it.

        Raises:
            CheckpointError: it is missing. Only logged where training ends with another error.
        """
        message, self.unwritten = self.unwritten, None
        if message is None:
            return
        there = "an earlier model stays there" if os.path.exists(str(self._model_file)) else "no model is there"
        last = f"{self._model_file}.checkpoint"
        if os.path.exists(last):
            there += f"; {last}, the last checkpoint, is whole, and the same command resumes from it"
        message = f"{message}, when it was the best of this run: {there}. Make room and train again"
        if sys.exc_info()[1] is not None:
            logging.error(message)
        else:
            raise CheckpointError(message)
