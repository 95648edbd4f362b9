"""What an agent writes: its model file, and in ParlAI's training loop the checkpoints, on disks that may be full."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.learning.checkpoints import Checkpoint, write_states
from parlai.core.opt import Opt

from polyencoder.errors import CheckpointError
from polyencoder.storage.files import replacing

__all__ = ["Saving"]


class Saving:
    """The files of one model: what was written, and what could not be.

    Args:
        model_file: of the agent, if it has one.
    """

    def __init__(self, model_file: str | None) -> None:
        self._model_file = model_file
        self._checkpoints: dict[str, Checkpoint] = {}
        self._unwritten: dict[str, str] = {}  # path -> why its last version could not be written

    def write(
        self,
        path: str,
        states: Callable[[], dict[str, Any]],
        *,
        opt: Opt,
        dictionary: RankerDictionary,
        with_counters: bool,
        goes_on: bool,
    ) -> None:
        """Write a model, its options and its dictionary, each beside its name, and rename it.

        Args:
            path: of the model.
            states: gives what is written.
            with_counters: whether ParlAI's training loop writes its counters next, as beside a checkpoint.
            goes_on: whether training goes on all the same if the disk is full.

        Raises:
            CheckpointError: it could not be written.
        """
        try:
            if not dictionary.is_written(f"{path}.dict"):
                dictionary.write(f"{path}.dict")
            with replacing(f"{path}.opt") as temporary:
                opt.save(str(temporary))
            if with_counters:
                self._checkpoint_at(path).write(states(), keep_previous=self._is_resumed_from(path))
            else:
                write_states(states(), path)
        except OSError as error:
            message = f"{path} could not be written: {error.strerror}"
            if not goes_on:
                raise CheckpointError(message) from error
            logging.error(f"{message}. Training goes on; what was saved before is untouched")
            self._unwritten[path] = message
        else:
            self._unwritten.pop(path, None)

    def seal(self) -> None:
        """Keep the counters that ParlAI has written of the last checkpoints."""
        for checkpoint in self._checkpoints.values():
            checkpoint.seal()

    @property
    def unwritten(self) -> str | None:
        """Why the best model of the run is not there, if it could not be written; a run that goes on remembers it."""
        return self._unwritten.get(str(self._model_file))

    @unwritten.setter
    def unwritten(self, message: str | None) -> None:
        if message:
            self._unwritten[str(self._model_file)] = message

    def check_that_the_best_is_written(self) -> None:
        """At the end of training: ParlAI believes that what it has asked for is there, and would evaluate it.

        Raises:
            CheckpointError: it is not there. Only logged where training ends with another error.
        """
        path = str(self._model_file)
        message = self._unwritten.pop(path, None)
        if message is None:
            return
        there = "an earlier model stays there" if os.path.exists(path) else "no model is there"
        last = f"{path}.checkpoint"
        if os.path.exists(last):
            there += f"; {last}, the last checkpoint, is whole, and the same command goes on from it"
        message = f"{message}, when it was the best of this run: {there}. Make room and train again"
        if sys.exc_info()[1] is not None:
            logging.error(message)
        else:
            raise CheckpointError(message)

    def _checkpoint_at(self, path: str) -> Checkpoint:
        spare = [f"{self._model_file}.checkpoint"] if path == self._model_file else []
        return self._checkpoints.setdefault(path, Checkpoint(path, spare=spare))

    def _is_resumed_from(self, path: str) -> bool:
        """Whether a restart reads this file: not the best model's where there are checkpoints."""
        return path != self._model_file or not os.path.exists(f"{self._model_file}.checkpoint")
