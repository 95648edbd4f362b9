"""Temporary folders that are cleaned up even after a kill.

Folders of killed processes are removed with the next temporary folder. All of them are in one folder of the user, and
each has a mark that its process wrote and locks: nothing else is ever removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_MARK = ".made-by-polyencoder"


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A `tempfile.TemporaryDirectory`, for a process that may be killed."""

    def __init__(self) -> None:
        parent = _get_parent()
        if parent is not None:
            _discard_abandoned(parent)
        super().__init__(dir=parent, ignore_cleanup_errors=True)
        self._mark = open(Path(self.name) / _MARK, "xb", buffering=0)  # noqa: SIM115 - its lock is held
        with suppress(OSError):  # a file system without locks: no other process can lock it either
            fcntl.flock(self._mark, fcntl.LOCK_EX)
        self._mark.write(_compute_mark(self.name))  # once it is locked: an empty mark says nothing

    def cleanup(self) -> None:
        """Removes the folder and its contents."""
        super().cleanup()
        self._mark.close()


def _get_parent() -> Path | None:
    """The user's folder of temporary folders; None if another user has taken its name."""
    parent = Path(tempfile.gettempdir()) / f".polyencoder-{os.getuid()}"
    with suppress(OSError):
        parent.mkdir(mode=0o700)
    with suppress(OSError):
        status = parent.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            return parent
    return None


def _compute_mark(folder: str | os.PathLike[str]) -> bytes:
    return f"polyencoder removes {os.path.basename(folder)}\n".encode()


def _discard_abandoned(parent: Path) -> None:
    for mark in parent.glob(f"*/{_MARK}"):
        with suppress(OSError):  # its process lives, or another process is removing it
            handle = os.open(mark, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.read(handle, 1 << 10) == _compute_mark(mark.parent):
                    shutil.rmtree(mark.parent)
            finally:
                os.close(handle)
