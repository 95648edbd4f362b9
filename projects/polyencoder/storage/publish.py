"""Publishes several files of a folder, and of folders in it, together: all of them are the new ones, or none.

The new files are written into a folder inside the target, which is then renamed. This rename is the publication: from
then on the files are moved to their places, by this process or, after a kill or an error, by the next process that
reads the folder or writes into it. Each step can be repeated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from polyencoder.errors import CheckpointError
from polyencoder.storage.files import alone_in, explain_no_folder, fsync

_PUBLISHED = ".polyencoder.published"
"""The folder of published files, while they are moved to their places."""
_UNFINISHED = re.compile(r"\.polyencoder\.[0-9a-f]{16}\.part")
_LOCK = ".lock"  # of a folder of unfinished files
_REMOVED = ".removed"  # a folder of empty files, by whose names the publication removes files


@contextmanager
def publishing(
    folder: str | os.PathLike[str],
    *,
    remove: Iterable[str] = (),
    replaces: Callable[[Path], Iterable[str]] = lambda target: (),
    check: Callable[[], object] = lambda: None,
) -> Iterator[Path]:
    """Yields an empty folder, whose files become those of `folder` together if the block succeeds.

    After an error, an interrupt or a kill either all files are the old ones, or all are the new ones once
    `finish_publication` was called.

    Args:
        folder: created if missing. Its other files are unchanged.
        remove: files, by their paths in the folder, that are removed, unless they are written.
        replaces: called with `folder` at the publication: names more files to remove, of those that exist then.
        check: called before the publication, when no other process can publish in this folder; may raise.

    Raises:
        CheckpointError: `folder` is a file.
        OSError: it cannot be written.
    """
    target = Path(folder)
    if reason := explain_no_folder(target):
        raise CheckpointError(f"{target}: {reason}; give a folder")
    created = [path for path in (target, *target.parents) if not path.exists()]
    staging = target / f".polyencoder.{secrets.token_hex(8)}.part"
    try:
        target.mkdir(parents=True, exist_ok=True)
        discard_unfinished(target)
        with ExitStack() as stack:
            with alone_in(target):  # nobody takes the new folder for an abandoned one before it is locked
                staging.mkdir()
                lock = stack.enter_context(open(staging / _LOCK, "wb"))
                with suppress(OSError):  # a file system without locks, where nothing is discarded
                    _lock(lock)
            yield staging
            _complete(staging, target)
            with alone_in(target):
                _move_published(target)
                check()
                _mark_removed(staging, {*remove, *replaces(target)})
                try:
                    os.rename(staging, target / _PUBLISHED)
                    _move_published(target)
                except BaseException:
                    _move_published(target)  # it is published, if it has been renamed
                    raise
    finally:
        with suppress(OSError):
            if staging.exists():
                _remove(staging)
        for path in created:
            with suppress(OSError):  # it has files in it
                path.rmdir()


def is_published(folder: Path) -> bool:
    """Whether files are published that are not in their places yet."""
    return _is_folder(folder / _PUBLISHED)


def finish_publication(folder: str | os.PathLike[str]) -> None:
    """Moves published files to their places after a kill; call it before a read. CheckpointError if it cannot."""
    target = Path(folder)
    if not is_published(target):
        return
    try:
        with alone_in(target):
            _move_published(target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: a save was interrupted, and cannot be finished ({error.strerror}); make the folder writable"
        ) from None


def discard_unfinished(folder: str | os.PathLike[str]) -> None:
    """Finishes or removes what killed processes left of their publications in this folder."""
    target = Path(folder)
    if not target.is_dir():
        return
    finish_publication(target)
    with alone_in(target):
        for path in target.iterdir():
            if _UNFINISHED.fullmatch(path.name) and _is_folder(path):
                with suppress(OSError):  # its process lives
                    if (path / _LOCK).exists():
                        with open(path / _LOCK, "rb") as lock:
                            _lock(lock)
                            _remove(path)
                    else:
                        path.rmdir()  # of a process that was killed before it wrote anything


def _lock(file: IO[bytes]) -> None:
    """Locks a file until it is closed; OSError if another process has the lock."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_folder(path: Path) -> bool:
    """Whether the path is a folder, and no link: models come from anywhere."""
    return path.is_dir() and not path.is_symlink()


def _list_files(folder: Path) -> list[Path]:
    """The paths of a folder's files, also of those in its folders, relative to it; without hidden ones."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.parts))


def _complete(staging: Path, target: Path) -> None:
    """Gives new files the permissions of old ones, else the permissions of a new file; writes all of them to disk."""
    mode = stat.S_IMODE(staging.stat().st_mode) & 0o666
    files = _list_files(staging)
    for file in files:
        old = _get_folder(file, target) / file.name
        (staging / file).chmod(stat.S_IMODE(old.stat().st_mode) if old.exists() else mode)
    _flush(staging, files)


def _mark_removed(staging: Path, names: Iterable[str]) -> None:
    """Writes down, on the disk, which files the publication removes."""
    marks = staging / _REMOVED
    marks.mkdir()
    removed = {Path(name) for name in names} - {*_list_files(staging)}
    for file in removed:
        (marks / file).parent.mkdir(parents=True, exist_ok=True)
        (marks / file).touch()
    _flush(marks, removed)
    fsync(staging)


def _flush(folder: Path, files: Iterable[Path]) -> None:
    for path in {folder / path for file in files for path in (file, *file.parents)} | {folder}:
        fsync(path)


def _move_published(target: Path) -> None:
    """Moves published files to their places, and removes those that the publication removes. Can be repeated."""
    published = target / _PUBLISHED
    if not _is_folder(published):
        return
    fsync(target)  # the rename that published them
    if _is_folder(published / _REMOVED):
        for file in _list_files(published / _REMOVED):
            (_get_folder(file, target) / file.name).unlink(missing_ok=True)
            for parent in file.parents[:-1]:
                _remove_if_empty(target / parent)
            (published / _REMOVED / file).unlink(missing_ok=True)
    changed = {target}
    for file in _list_files(published):
        folder = _get_folder(file, target)
        folder.mkdir(parents=True, exist_ok=True)
        changed |= {target / parent for parent in file.parents}
        with suppress(FileNotFoundError):  # without locks another process may have moved it
            os.replace(published / file, folder / file.name)
    for folder in changed:
        fsync(folder)
    _remove(published)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _get_folder(file: Path, target: Path) -> Path:
    """The folder in `target` of a file. OSError if it is a file or a link: nothing outside the target is changed."""
    for parent in (target / parent for parent in file.parents if parent != Path()):
        if os.path.lexists(parent) and not _is_folder(parent):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent))
    return target / file.parent


def _remove(folder: Path) -> None:
    """Removes a folder of ours, its lock last: without it nobody knows what the rest is."""
    for path in folder.iterdir():
        if path.name != _LOCK:
            shutil.rmtree(path) if _is_folder(path) else path.unlink(missing_ok=True)
    (folder / _LOCK).unlink(missing_ok=True)
    folder.rmdir()
