"""Atomic writes: a temporary file beside the target, then renamed."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from polyencoder.checks import check_place
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError, get_first_line

if TYPE_CHECKING:
    import numpy as np


ABANDONED = 3600.0
"""Seconds without a change after which a temporary file counts as abandoned."""
_LONGEST_NAME = 200  # bytes of a file's name in the names of its temporary files; file systems have room for 255


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = True, new_mode: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`, renamed to `path` if the block succeeds.

    Without `overwrite` a file that another process has written meanwhile is unchanged: FileExistsError.

    A kill, an error or a loss of power in between leaves the old file unchanged, and an error no temporary file. What
    killed processes left is removed once it is an hour old. A symbolic link stays a link: the file that it points to is
    replaced. The new file has the permissions of the old one, else `new_mode` without those that umask withholds.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a folder, or a device, which a plain file would replace
        raise FileExistsError(errno.EEXIST, "there is something else than a plain file", os.fspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _discard(target, older_than=ABANDONED)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary = target.with_name(f"{_get_part_prefix(target)}{secrets.token_hex(4)}.part")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, new_mode if mode is None else mode | 0o600)
        mode = stat.S_IMODE(os.fstat(handle).st_mode) if mode is None else mode  # without those that umask withholds
        os.close(handle)
        yield temporary
        fsync(temporary)
        temporary.chmod(mode)  # a library may have replaced it by a private file
        if overwrite:
            os.replace(temporary, target)
        else:
            _rename_new(temporary, target)
        fsync(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _rename_new(temporary: Path, target: Path) -> None:
    """Gives a finished file its name, or FileExistsError; without hard links an empty file reserves it first."""
    try:
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise
        except OSError:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.replace(temporary, target)
        else:
            os.unlink(temporary)
    except FileExistsError:
        raise build_exists_error(target) from None


def build_exists_error(path: str | os.PathLike[str]) -> FileExistsError:
    """The error for a file or folder that appeared after a check that there is none; it is unchanged."""
    return FileExistsError(errno.EEXIST, "another process has written it meanwhile", os.fspath(path))


@contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Locks a folder while files that belong together are written into it, if its file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def reporting_write_errors(
    path: str | os.PathLike[str], error: type[PolyencoderError] = PolyencoderError
) -> Iterator[None]:
    """Raises an OSError of writing `path` as a one-line `error`."""
    try:
        yield
    except _list_write_errors() as cause:
        reason = getattr(cause, "strerror", None) or get_first_line(cause)
        if (where := getattr(cause, "filename", None)) and os.fspath(path) not in str(where):
            reason = f"{reason} at {where}"
        raise error(f"{os.fspath(path)}: cannot be written ({reason}); give another place, or make room") from cause


def _list_write_errors() -> tuple[type[Exception], ...]:
    """OSError, and the error of safetensors where it is in use: polyencoder-runtime can do without it."""
    return OSError, *([sys.modules["safetensors"].SafetensorError] if "safetensors" in sys.modules else [])


def check_writable(
    path: str | os.PathLike[str], *, argument: str, overwrite: bool, read: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """Raises ConfigError if a file cannot be written or exists already, before work that would be lost.

    `argument` is named in errors. The file must be none of those in `read`, even with `overwrite`.
    """
    check_place(argument, path)
    target = Path(path)
    if any(file and os.path.exists(file) and target.exists() and target.samefile(file) for file in read):
        raise ConfigError(f"{target}: is read, and would be replaced; give another name", argument=argument)
    if target.exists() and not target.is_file():
        raise ConfigError(f"{target}: is a folder or a device; give the name of a file", argument=argument)
    if target.exists() and not overwrite:
        raise ConfigError(f"{target}: exists already; give another name, or overwrite it", argument="overwrite")
    _check_parent(target)


def check_writable_folder(path: str | os.PathLike[str], *, argument: str) -> None:
    """Raises ConfigError if a folder cannot be written, before work that would be lost."""
    check_place(argument, path)
    target = Path(path)
    if reason := explain_no_folder(target):
        raise ConfigError(f"{target}: {reason}; give the name of a folder", argument=argument)
    _check_parent(target / "file", reported=target)


def explain_no_folder(path: Path) -> str | None:
    """Why there can be no folder at this path, if a file or a broken link is there."""
    if path.is_dir() or not os.path.lexists(path):
        return None
    return "is a file" if path.exists() else f"is a link to {os.readlink(path)}, which does not exist"


def _check_parent(target: Path, *, reported: Path | None = None) -> None:
    """Tries to create a file in the nearest existing parent folder."""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    with reporting_write_errors(reported or target, ConfigError), tempfile.NamedTemporaryFile(dir=folder):
        pass


def discard_leftovers(path: str | os.PathLike[str]) -> None:
    """Removes temporary files of killed writers of `path`. No other process may be writing it."""
    _discard(Path(os.path.realpath(path)))


def find_leftovers(path: str | os.PathLike[str]) -> list[Path]:
    """The temporary files of `path`, of current or killed writers."""
    target = Path(os.path.realpath(path))
    return sorted(target.parent.glob(f"{glob.escape(_get_part_prefix(target))}????????.part"))


def _discard(target: Path, *, older_than: float = 0.0) -> None:
    for leftover in find_leftovers(target):
        with suppress(FileNotFoundError):  # another process may be doing the same
            if time.time() - leftover.stat().st_mtime >= older_than:
                leftover.unlink()


def _get_part_prefix(target: Path) -> str:
    """The prefix of the names of a file's temporary files; shortened, so that none is too long for a file system."""
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])}."


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = True) -> None:
    """Writes UTF-8 text to `path`, atomically; `overwrite` as in `atomic_write`."""
    with atomic_write(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_array(path: str | os.PathLike[str], array: np.ndarray[Any, Any], *, overwrite: bool = True) -> None:
    """Writes an array as .npy to `path`, atomically; `overwrite` as in `atomic_write`."""
    import numpy as np

    with atomic_write(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        # through `write`: numpy's own way into a file does not say that the disk is full
        np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)


def move_files(source: Path, target: Path, *, last: str) -> None:
    """Moves the files below a folder to the same paths below another; `last`, which marks it as complete, last."""
    files = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for file in sorted(files, key=lambda file: file == Path(last)):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / file, target / file)


def fsync(path: str | os.PathLike[str]) -> None:
    """Flushes a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do this for folders
            raise
    finally:
        os.close(descriptor)


T = TypeVar("T")


def parse_versioned(
    text: str | bytes, make: Callable[[dict[str, Any]], T], *, version: int, origin: object, remedy: str
) -> T:
    """The result of `make` of a JSON object's values, without its `format_version`.

    An error of `make`, such as KeyError or ConfigError, means that the values are damaged. Messages name the `origin`
    and end with the `remedy`.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    try:
        values = json.loads(text)
        if (written := values.pop("format_version")) == version:
            return make(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{origin}: damaged ({type(error).__name__}: {get_first_line(error)}); {remedy}"
        ) from None
    raise CheckpointError(
        f"{origin}: format version {written!r}, but this version of polyencoder reads {version}; install the version "
        f"that wrote it, or {remedy}"
    )
