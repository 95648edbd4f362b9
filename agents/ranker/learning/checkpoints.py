"""Checkpoints that a kill, at whichever moment, leaves whole: the states of training and the counters of them.

ParlAI's training loop writes `X`, and then its counters (examples seen, validations, patience) as `X.trainstats`, in
place. So between the two a kill would leave the states of one moment with the counters of another. Here `X` names
itself, and `X.resume` keeps the counters of the checkpoint that it names. It is written as soon as ParlAI has
written them; until then the checkpoint before, `X.previous` with `X.previous.resume`, is the one to go on from.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import torch

from polyencoder.errors import CheckpointError
from polyencoder.storage.checkpoint import read_states
from polyencoder.storage.files import discard_leftovers, duplicate, fingerprint, replacing, write_text

MARK = "checkpoint"  # where a checkpoint has its name, and the fingerprint of the counters that were there before it
PREVIOUS, COUNTERS, SEALED = ".previous", ".trainstats", ".resume"
NO_COUNTERS = "{}"  # ParlAI takes it for a run that has not begun

Counters = dict[str, Any]


class Checkpoint:
    """The checkpoint at a path, and the one before it.

    `spare` are the paths of others, of which the one before may make room for this one on a full disk.
    """

    def __init__(self, path: str, *, spare: Sequence[str] = ()) -> None:
        self.path = path
        self._spare = [path, *spare]
        self._unsealed: dict[str, str] | None = None  # the mark of a file whose counters ParlAI has yet to write

    def write(self, states: dict[str, Any], *, keep_previous: bool) -> None:
        """Replace the checkpoint, and keep the one before. The disk may be full: then all is as it was.

        Raises:
            OSError: it could not be written.
        """
        self.seal()
        if not os.path.exists(self.path + COUNTERS):
            write_text(self.path + COUNTERS, NO_COUNTERS)
        mark = {"name": uuid.uuid4().hex, "after": fingerprint([Path(self.path + COUNTERS).read_bytes()])}
        for suffix in ("", ".opt", COUNTERS, SEALED, PREVIOUS, PREVIOUS + SEALED):
            discard_leftovers(self.path + suffix)
        try:
            self._write(states | {MARK: mark}, keep_previous=keep_previous)
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT) or not (given_up := self._make_room()):
                raise
            logging.warning(f"the disk is full: {given_up} makes room for {self.path}")
            self._write(states | {MARK: mark}, keep_previous=keep_previous)
        self._unsealed = mark

    def _write(self, states: dict[str, Any], *, keep_previous: bool) -> None:
        with replacing(self.path) as temporary:
            _save(states, temporary)
            if not keep_previous:
                self._discard(PREVIOUS)
                self._discard(PREVIOUS + SEALED)
            elif os.path.exists(self.path):
                duplicate(self.path, self.path + PREVIOUS)
                if os.path.exists(self.path + SEALED):
                    duplicate(self.path + SEALED, self.path + PREVIOUS + SEALED)

    def seal(self) -> None:
        """Keep the counters that ParlAI has written of the last checkpoint."""
        mark, self._unsealed = self._unsealed, None
        counters = self._counters_after(mark) if mark else None
        if mark and counters is not None:
            self._seal(mark, counters)

    def make_ready(self, *, batch: int, otherwise: Sequence[Checkpoint] = ()) -> bool:
        """Before ParlAI reads the checkpoint and its counters: make sure that they belong together.

        If the last one has no counters, the one before takes its place, or one of `otherwise`. False: there is none,
        the run was killed before it had written any, and has to begin anew.

        Args:
            batch: the examples of a batch, those of all processes together.
            otherwise: checkpoints to go on from if this one and the one before cannot be used.

        Raises:
            CheckpointError: the file is damaged, and there is no other.
        """
        try:
            foreign = self._mark() is None
            damage = None
        except CheckpointError as error:
            foreign, damage = False, error
        if foreign:
            return True  # ParlAI knows what to make of it
        for origin in (self, Checkpoint(self.path + PREVIOUS), *otherwise):
            counters = origin.counters()
            if counters is not None:
                if origin is not self:
                    logging.warning(f"{damage or f'the run was killed while it wrote {self.path}'}")
                    logging.warning(f"going on from {origin.path}")
                    duplicate(origin.path, self.path)
                self._seal(self._mark() or {}, counters)
                self._give(counters, batch)
                return True
        if damage:
            raise damage
        if not os.path.exists(self.path + COUNTERS) or _read_json(self.path + COUNTERS):
            return True  # a model that was copied: before a run's first checkpoint its counters are there, and empty
        logging.warning(f"the run was killed while it wrote its first checkpoint, {self.path}: beginning anew")
        write_text(self.path + COUNTERS, NO_COUNTERS)
        self._discard("")
        return False

    def counters(self) -> Counters | None:
        """The counters that go with this checkpoint, if it is whole and there are any."""
        try:
            mark = self._mark()
        except CheckpointError:
            return None
        if mark is None:
            return None
        sealed = _read_json(self.path + SEALED)
        if sealed and sealed.get("name") == mark["name"]:
            return dict(sealed["counters"])
        return self._counters_after(mark)

    def _mark(self) -> dict[str, str] | None:
        """How the file names itself; None if it was written by another program.

        Raises:
            CheckpointError: there is no file, or a damaged one.
        """
        mark = read_states(self.path).get(MARK)
        return mark if isinstance(mark, dict) else None

    def _counters_after(self, mark: dict[str, str]) -> Counters | None:
        """What ParlAI has written after the checkpoint with this mark; None if it has not come to that, or its end."""
        path = self.path + COUNTERS
        counters = _read_json(path)
        if counters is None or fingerprint([Path(path).read_bytes()]) == mark["after"]:
            return None
        return counters

    def _seal(self, mark: dict[str, str], counters: Counters) -> None:
        write_text(self.path + SEALED, json.dumps({"name": mark["name"], "counters": counters}))

    def _give(self, counters: Counters, batch: int) -> None:
        """Write the counters where ParlAI reads them, the epochs as a run that was never stopped has them.

        ParlAI adds the epochs of each part of a run as fractions. After a few parts their sum would miss a goal, such
        as an epoch's end, by a hair, and the run validate or stop an update later. What is added to a single fraction
        does not.
        """
        epochs, batches = counters.get("total_epochs", 0), counters.get("parleys", 0)
        if epochs > 0 and batches:
            exact = batches * batch / max(1, round(batches * batch / epochs))
            if math.isclose(exact, epochs, rel_tol=1e-9):  # not with batches of many sizes
                counters = counters | {"total_epochs": exact}
        write_text(self.path + COUNTERS, json.dumps(counters, indent=4))

    def _make_room(self) -> str:
        """Remove a checkpoint that another has followed, and say which; the empty string if there is none."""
        for path in self._spare:
            previous = Path(path + PREVIOUS)
            if previous.exists():
                previous.unlink()
                return str(previous)
        return ""

    def _discard(self, suffix: str) -> bool:
        """Remove a file if it is there, and say whether it was."""
        there = os.path.exists(self.path + suffix)
        Path(self.path + suffix).unlink(missing_ok=True)
        return there


def write_states(states: dict[str, Any], path: str) -> None:
    """Write a model's states beside their name and rename them; no counters go with them."""
    with replacing(path) as temporary:
        _save(states, temporary)


def _save(states: dict[str, Any], path: Path) -> None:
    """`torch.save`, which reports a full disk as an error of its own kind."""
    with open(path, "wb") as file:
        try:
            torch.save(states, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError):
        return None
