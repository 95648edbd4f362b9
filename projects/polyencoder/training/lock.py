"""Locks a model for one training run; the system releases the lock, not the file, when the process ends."""

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

_SHARED: WeakValueDictionary[tuple[int, str], TrainingLock] = WeakValueDictionary()
"""This process's locks, shared by its trainings of the same model."""


class TrainingLock:
    """A lock, the file `{model_file}.lock`, held until `release` or the end of this object.

    TrainingError: another process trains the model. CheckpointError: the file cannot be written.
    """

    def __init__(self, model_file: str | os.PathLike[str], *, argument: str = "model_file") -> None:
        self.path = _get_path(model_file)
        lock = filelock.FileLock(self.path, blocking=False, thread_local=False)
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            Path(self.path).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}))
        except filelock.Timeout:
            raise TrainingError(
                f"{os.fspath(model_file)} is being trained by {_describe_owner(self.path)}: wait for it to end, stop "
                "it, or train in another place",
                argument=argument,
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{os.fspath(model_file)}: cannot be written ({error.strerror or error}); give a path in a folder "
                "that you can write to",
                argument=argument,
            ) from None
        self.release = finalize(self, _give_back, lock, os.getpid())

    @classmethod
    def get_or_create(cls, model_file: str | os.PathLike[str]) -> TrainingLock:
        """This process's existing lock of a model file, or a new one."""
        key = os.getpid(), _get_path(model_file)  # not inherited by forks
        lock = _SHARED.get(key)
        if lock is None or not lock.release.alive:
            lock = _SHARED[key] = cls(model_file)
        return lock


def _get_path(model_file: str | os.PathLike[str]) -> str:
    return f"{os.path.realpath(model_file)}.lock"


def _describe_owner(path: str) -> str:
    try:
        owner: dict[str, Any] = dict(json.loads(Path(path).read_bytes()))
        host = "" if owner["host"] == socket.gethostname() else f" on {owner['host']}"
        return f"process {owner['pid']}{host}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # which has not written into it yet


def _give_back(lock: filelock.BaseFileLock, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()
