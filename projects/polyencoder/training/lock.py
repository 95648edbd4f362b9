"""Locks a model file for one training; the system releases the lock when the process ends.

A kill cannot leave it behind. The file stays after a kill, means nothing then, and is taken over. Readers of the model
take no lock.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import filelock

from polyencoder.errors import CheckpointError, TrainingError

__all__ = ["TrainingLock"]

_SHARED: WeakValueDictionary[tuple[int, str], TrainingLock] = WeakValueDictionary()
"""This process's locks that its other trainings of the model may have as well."""


class TrainingLock:
    """A lock that is held for as long as somebody keeps this object, or until `release`.

    Args:
        model_file: it is `X.lock` of this.
        argument: its name in errors.

    Raises:
        TrainingError: another training has it; the message names its process.
        CheckpointError: nothing can be written there.
    """

    def __init__(self, model_file: str | os.PathLike[str], *, argument: str = "model_file") -> None:
        self.path = _path(model_file)
        lock = filelock.FileLock(self.path, blocking=False, thread_local=False)
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            Path(self.path).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}))
        except filelock.Timeout:
            raise TrainingError(
                f"{os.fspath(model_file)} is being trained by {_owner(self.path)}: wait for it to end, stop it, or "
                "give this training a place of its own",
                argument=argument,
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{os.fspath(model_file)}: nothing can be written there ({error.strerror or error}); give a "
                "place in a folder of your own",
                argument=argument,
            ) from None
        self.release = finalize(self, _give_back, lock, os.getpid())

    @classmethod
    def shared(cls, model_file: str | os.PathLike[str]) -> TrainingLock:
        """The lock of a model file, for this process; where it has it already, that one. Errors as of a new one."""
        key = os.getpid(), _path(model_file)  # a process that was forked has none
        lock = _SHARED.get(key)
        if lock is None or not lock.release.alive:
            lock = _SHARED[key] = cls(model_file)
        return lock


def _path(model_file: str | os.PathLike[str]) -> str:
    return f"{os.path.realpath(model_file)}.lock"


def _owner(path: str) -> str:
    """Describes the process that has locked the file."""
    try:
        owner: dict[str, Any] = dict(json.loads(Path(path).read_bytes()))
        place = "" if owner["host"] == socket.gethostname() else f" on {owner['host']}"
        return f"process {owner['pid']}{place}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # which has not written into it yet


def _give_back(lock: filelock.BaseFileLock, owner: int) -> None:
    """Remove the file and the lock, if this is the process that has it, not one that it forked."""
    if os.getpid() == owner:
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()
