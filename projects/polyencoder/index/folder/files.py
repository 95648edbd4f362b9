"""The files of an index folder: names, the writer's lock, and errors of the disk in one line.

Only files with such names are ever removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from polyencoder.errors import InputError, get_first_line

DATABASE = "index.sqlite"
UNFINISHED = "unfinished.sqlite"
"""The database while the index is built; renaming it finishes the build."""
META = "meta.json"
LOCK = ".lock"

_BUSY_SECONDS = 30
_LOG_INDEX = 1 << 15  # bytes

_FINAL = (
    r"(index|unfinished)\.sqlite|meta\.json|vectors-\d{12}-[0-9a-f]{16}(\.(int8|bounds|scales|tokens|offsets))?\.npy"
    r"|faiss-[0-9a-f]{16}-(hnsw|ivf-flat|ivf-pq)\.index"
)
_TEMPORARY = rf"\.({_FINAL}|model)\.[a-z0-9_]{{8}}\.part"
_OURS = re.compile(rf"({_FINAL}|{_TEMPORARY})|((index|unfinished)\.sqlite|{_TEMPORARY})-(wal|shm)|\.lock")


def is_ours(name: str) -> bool:
    """Whether an index file may have this name."""
    return _OURS.fullmatch(name) is not None


def check_only_ours(folder: Path) -> list[Path]:
    """The files of a folder. Raises InputError, naming the first one that is not of an index."""
    paths = sorted(folder.iterdir())
    if strange := [path.name for path in paths if not is_ours(path.name)]:
        raise InputError(
            f"{folder}: has {strange[0]} in it, which belongs to no index of this version; give another folder, or "
            "take it out"
        )
    return paths


def check_no_links(folder: Path) -> None:
    """Raises InputError if an index file is a symbolic link: a write would change a file elsewhere."""
    if links := [path.name for path in sorted(folder.iterdir()) if is_ours(path.name) and path.is_symlink()]:
        raise InputError(
            f"{links[0]} is a symbolic link, and a change would be written to its target; change a copy that has the "
            "files themselves (cp -rL)",
            where=folder,
        )


class IndexBusy(InputError):
    """Another process has been changing the index for some time."""


class WriteError(InputError):
    """The disk of the index is full, or fails."""


@contextmanager
def locked(folder: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Holds the lock to change or build an index until the block or the process ends. IndexBusy after `seconds`."""
    import filelock  # here: readers need no lock

    lock = filelock.FileLock(folder / LOCK, timeout=_BUSY_SECONDS if seconds is None else seconds)
    with wrap_io_errors(folder):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise IndexBusy("cannot be changed now; is another process at it?", where=folder) from None
    try:
        yield
    finally:
        lock.release()


class wrap_io_errors:  # a class, as generators cost more, and there is one per record
    """Converts disk errors in the block, such as a full disk, to PolyencoderError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, (OSError, sqlite3.Error)):
            reason = _explain(error, self._folder)
            raise WriteError(
                f"cannot be written ({reason}); fix that and run the same command again: it resumes",
                where=self._folder,
                public=f"the index cannot be written ({reason}), and is unchanged: try again when there is room",
            ) from error


def _explain(error: OSError | sqlite3.Error, folder: Path) -> str:
    """The reason of a disk error; SQLite calls a disk without room for the index of its log an I/O error."""
    with suppress(OSError):
        if isinstance(error, sqlite3.OperationalError) and shutil.disk_usage(folder).free < _LOG_INDEX:
            return os.strerror(errno.ENOSPC)
    return get_first_line(error)


def remove_index(folder: str | os.PathLike[str]) -> None:
    """Removes an index, finished or not, if any. InputError if the folder has other files, which remain."""
    path = Path(folder)
    if path.is_file():
        raise InputError(f"{path}: is a file; give another folder for the index")
    if not path.exists():
        return
    check_only_ours(path)
    with locked(path), wrap_io_errors(path):
        files = [file for file in check_only_ours(path) if file.name != LOCK]
        for file in sorted(files, key=lambda file: file.name == DATABASE):  # last: until then it can be repeated
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        (path / LOCK).unlink()  # under the lock: a waiting process makes a new one
    with wrap_io_errors(path):
        path.resolve().rmdir()
        if path.is_symlink():
            path.unlink()
