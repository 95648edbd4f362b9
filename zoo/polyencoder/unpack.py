"""Unpacks untrusted archives: stays inside the folder, limits the size, and leaves nothing after an error.

Only files and folders with plain relative names are accepted. That is stricter than tarfile's own `data`
filter, and the same on every version of Python: some 3.10 and 3.11 have no such filter.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PureWindowsPath
from typing import Any

from polyencoder.errors import CheckpointError, first_line

MEMBERS = 10_000
RATIO, ROOM = 20, 1 << 30
"""An archive may unpack to this many times its size, and this many bytes more: weights do not compress to half."""
_PIECE = 1 << 20
_LONGEST_NAME, _LONGEST_PATH = 255, 1000  # bytes: the limits of most systems


class _Refused(Exception):
    """A member is refused; the message is the reason."""


class _Decompressed(gzip.GzipFile):
    """The tar stream, limited in size. Headers count too; a single read is limited as well, as no header is long."""

    limit: int

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size > 2 * _PIECE or self.tell() > self.limit:
            raise _Refused(f"it holds more than {self.limit:,} bytes")
        return super().read(size)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a `.tgz` archive into an empty folder.

    Raises:
        CheckpointError: it is damaged or too large, or a member is a link or a device, has an odd name, or would be
            written outside the folder.
        OSError: the disk is full, or it cannot be written to. The folder is emptied after any error.
    """
    try:
        _unpack(archive, folder)
    except BaseException as error:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if isinstance(error, _Refused):
            raise CheckpointError(f"{archive}: not unpacked, because {error}") from None
        if isinstance(error, (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)):
            raise CheckpointError(f"{archive}: damaged, or not a .tgz archive ({first_line(error)})") from error
        raise


def _unpack(archive: Path, folder: Path) -> None:
    size, files, folders = 0, set[Path](), set[Path]()
    with _Decompressed(archive) as stream:
        stream.limit = RATIO * archive.stat().st_size + ROOM
        source: Any = stream
        with tarfile.open(fileobj=source, mode="r:") as tar:
            for count, member in enumerate(tar, start=1):
                size += member.size
                if count > MEMBERS:
                    raise _Refused(f"it has more than {MEMBERS:,} members")
                if size > stream.limit:
                    raise _Refused(f"it holds more than {stream.limit:,} bytes")
                _check(member, files=files, folders=folders)
                _write(tar, member, folder / member.name)
            while stream.read(_PIECE):
                pass  # to the end, where gzip's checksum is


def _check(member: tarfile.TarInfo, *, files: set[Path], folders: set[Path]) -> None:
    """Raises `_Refused` unless a member is a file or folder with a portable name that did not occur before."""
    path = PureWindowsPath(member.name)  # knows the separators, roots and drives of every system
    if path.anchor or ".." in path.parts:
        raise _Refused(f"{member.name!r:.300} in it would leave the folder")
    if not (member.isreg() or member.isdir()):
        raise _Refused(f"{member.name!r:.300} in it is a link or a device")
    try:
        lengths = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:  # not UTF-8
        lengths = [_LONGEST_NAME + 1]
    if not member.name.isprintable() or max(lengths, default=0) > _LONGEST_NAME or sum(lengths) > _LONGEST_PATH:
        raise _Refused(f"{member.name!r:.300} in it is not a valid file name")
    name = Path(os.path.normpath(member.name))
    if (member.isreg() and (name in folders or not name.name)) or not files.isdisjoint({name, *name.parents}):
        raise _Refused(f"{member.name!r:.300} is in it twice")
    folders.update(name.parents)
    (files if member.isreg() else folders).add(name)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # it is a file
    with source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, _PIECE)
