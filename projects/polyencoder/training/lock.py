"""One training for one model: a lock beside the model file, which the system takes off when its process ends.

The lock is POSIX's, of a process: its children do not inherit it, and a kill cannot leave it behind. The file stays
after a kill, means nothing then, and is taken over. Readers of the model take no lock.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from polyencoder.errors import CheckpointError, TrainingError

try:
    import fcntl
except ImportError:  # Windows has no such locks: there two trainings are not told from each other
    fcntl = None  # type: ignore[assignment]

__all__ = ["TrainingLock"]

_HELD: WeakValueDictionary[tuple[int, str], TrainingLock] = WeakValueDictionary()
"""This process's locks. To open a locked file and close it again would take the lock off."""


class TrainingLock:
    """A lock that this process holds for as long as somebody keeps this object, or until `release`."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self._release = finalize(self, _give_back, path, handle, os.getpid())

    @classmethod
    def of(cls, model_file: str | os.PathLike[str], *, argument: str = "model_file") -> TrainingLock:
        """Take the lock of a model file, `X.lock`; where this process has it already, that one.

        `argument` is what errors say to name it.

        Raises:
            TrainingError: another process has it; the message says which.
            CheckpointError: nothing can be written there.
        """
        path = f"{os.path.realpath(model_file)}.lock"
        if (held := _HELD.get((os.getpid(), path))) is not None:
            return held
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            handle = _locked(path)
            if handle is None:
                raise TrainingError(
                    f"{os.fspath(model_file)} is being trained by {_owner(path)}: wait for it to end, stop it, or give "
                    "this training a place of its own",
                    argument=argument,
                )
            _sign(handle)
        except OSError as error:
            raise CheckpointError(
                f"{os.fspath(model_file)}: nothing can be written there ({error.strerror or error}); give a "
                "place in a folder of your own",
                argument=argument,
            ) from None
        lock = _HELD[os.getpid(), path] = cls(path, handle)
        return lock

    def release(self) -> None:
        """Give the lock back, before the object is gone."""
        _HELD.pop((os.getpid(), self.path), None)
        self._release()


def _locked(path: str) -> int | None:
    """The handle of the locked file; None if another process has locked it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if fcntl is not None:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        try:
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # its owner has just removed the file: what is locked is not what others will open
        time.sleep(0.01)


def _sign(handle: int) -> None:
    """Write into the file whose it is."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}).encode(), 0)


def _owner(path: str) -> str:
    """Who has locked the file, as far as it says."""
    try:
        owner: dict[str, Any] = dict(json.loads(Path(path).read_bytes()))
        place = "" if owner["host"] == socket.gethostname() else f" on {owner['host']}"
        return f"process {owner['pid']}{place}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # which has not signed yet


def _give_back(path: str, handle: int, owner: int) -> None:
    """Remove the file and close it, if this is the process that has locked it, not one that it forked."""
    if os.getpid() == owner:
        with suppress(OSError):
            os.unlink(path)
    os.close(handle)
