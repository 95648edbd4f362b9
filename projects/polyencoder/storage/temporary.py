"""Temporary folders that are cleaned up even after a kill.

A folder is removed when it is no longer used, and when SIGTERM ends its process. Folders of killed
processes, whose locks are free, are removed with the next temporary folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

_PREFIX, _LOCK = "polyencoder-", ".lock"
_NEW = 60.0  # seconds in which a folder may not have its lock yet
_live: dict[str, int] = {}  # the folders, and the process that each belongs to: a child has a copy of this


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A `tempfile.TemporaryDirectory`, for a process that may be killed."""

    def __init__(self) -> None:
        _discard_abandoned()
        super().__init__(prefix=_PREFIX, ignore_cleanup_errors=True)
        self._lock = FileLock(Path(self.name) / _LOCK)
        self._lock.acquire()
        _live[self.name] = os.getpid()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)

    def cleanup(self) -> None:
        """Removes the folder and its contents."""
        _live.pop(self.name, None)
        super().cleanup()
        self._lock.release()


def _discard_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if not (folder / _LOCK).is_file() or time.time() - folder.stat().st_mtime < _NEW:
                continue
            with FileLock(folder / _LOCK, timeout=0):  # its process is gone
                shutil.rmtree(folder)
        except (Timeout, OSError):  # it is in use, or belongs to another user
            continue


def _end(number: int, frame: FrameType | None) -> None:
    for folder, process in _live.items():
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
