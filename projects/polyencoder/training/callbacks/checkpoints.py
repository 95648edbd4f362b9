"""Checkpointing: one atomically written file, from which the same command resumes a run bit-exactly."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any

import torch

from polyencoder.checkpoint import write_states
from polyencoder.errors import CheckpointError, TrainingError, get_first_line
from polyencoder.storage.files import discard_leftovers
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import gather_objects

FORMAT_VERSION = 2

_log = logging.getLogger(__name__)


class Checkpoints(Callback):
    """Saves the state of a run after each evaluation, and resumes from it.

    With gradient accumulation it waits for the update. With several processes the first one writes, and all read. A
    full disk does not end a run, unless the last checkpoint cannot be written.

    Args:
        settings: of the run, as plain values; resuming with different ones is an error.
        defaults: the values of settings that a checkpoint lacks, because it is older than they are.
        changeable: settings that may differ in a resumed run.
        explicit: settings that were given explicitly, which an error names first.
        instead: the alternative that the error suggests.
        every_seconds: also write a checkpoint at this interval.
    """

    name = "checkpoints"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        changeable: Collection[str] = (),
        explicit: Collection[str] = (),
        instead: str = "give another folder",
        every_seconds: float = 600.0,
    ) -> None:
        self.path = Path(path)
        self.resumed = False
        self._settings, self._defaults, self._every = dict(settings), defaults, every_seconds
        self._changeable, self._explicit, self._instead = changeable, explicit, instead
        self._written, self._due = time.monotonic(), False
        self._failed: str | None = None

    def on_start(self, run: Run) -> None:
        if run.processes.is_first:
            discard_leftovers(self.path)
        if not gather_objects(self.path.is_file())[0]:
            return
        states = read_checkpoint(self.path, instead=self._instead)
        self._check_settings(states["settings"])
        try:
            run.load_state_dict(states["run"])
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        except KeyError as error:
            raise CheckpointError(
                f"{self.path}: has no {error}: another version of polyencoder wrote it; {self._instead}"
            ) from None
        self.resumed = True
        _log.info("resumed from %s, after %d updates", self.path, run.updates.count)

    def _check_settings(self, begun: Mapping[str, Any]) -> None:
        """Raises CheckpointError for settings that differ from the checkpoint's; those that it lacks have defaults."""
        now = self._settings
        was = {**{name: self._defaults.get(name) for name in now}, **begun}
        changed = [name for name in was if name not in self._changeable and now.get(name) != was[name]]
        if changed:
            name = min(changed, key=lambda name: (name not in begun, name not in self._explicit, name))
            raise CheckpointError(
                f"{self.path}: was begun with {name} {was[name]!r}, not {now.get(name)!r}; continue with the same "
                f"settings, or {self._instead}",
                argument=name,
            )

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        self._due = True  # written when all callbacks have seen the evaluation, and the step

    def after_all(self, run: Run) -> None:
        if gather_objects(time.monotonic() - self._written >= self._every)[0]:
            self._due = True  # by the first process's clock
        if self._due and not run.updates.is_under_way:  # accumulated gradients differ between processes
            self.write(run)

    def on_end(self, run: Run) -> None:
        if self._due:
            self.write(run)
        if self._failed is not None:
            raise TrainingError(f"{self.path} could not be written: {self._failed}")

    def write(self, run: Run) -> None:
        """Writes the current state of the run."""
        self._due, self._written = False, time.monotonic()
        state = run.state_dict()
        if not run.processes.is_first:
            return
        try:
            write_states(self.path, {"format_version": FORMAT_VERSION, "settings": self._settings, "run": state})
        except OSError as error:
            self._failed = error.strerror or str(error)
            _log.error("%s could not be written: %s. Training continues", self.path, self._failed)
        else:
            self._failed = None


def read_checkpoint(path: Path, *, instead: str) -> dict[str, Any]:
    """The states in a checkpoint.

    Raises:
        CheckpointError: it is damaged, or another version of polyencoder wrote it; `instead` says what to do then.
    """
    try:
        states = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError, ValueError, OSError) as error:
        raise CheckpointError(f"{path}: damaged, cannot be resumed from ({get_first_line(error)})") from None
    if not isinstance(states, dict) or states.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"{path}: another version of polyencoder wrote it; {instead}")
    return states
