"""Unpacks untrusted archives: tarfile's `data` filter, limits of size, and nothing left after an error."""

from __future__ import annotations

import errno
import gzip
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any

from polyencoder.errors import CheckpointError, get_first_line

MEMBERS = 10_000
RATIO, ROOM = 20, 1 << 30
"""An archive may unpack to this many times its size, and this many bytes more: weights do not compress to half."""
_PIECE = 1 << 20
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError)
_NAMES = {errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR}  # of names that no member can have


class _MemberError(Exception):
    """A member is refused; the message is the reason."""


class _LimitedGzip(gzip.GzipFile):
    """The tar stream, limited in size. Headers count too; a single read is limited as well, as no header is long."""

    limit: int

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size > 2 * _PIECE or self.tell() > self.limit:
            raise _MemberError(f"it holds more than {self.limit:,} bytes")
        return super().read(size)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a `.tgz` archive into an empty folder.

    Raises:
        CheckpointError: it is damaged or too large, or a member is a link or a device, has an impossible name or
            time, or would be written outside the folder; or this Python's tarfile has no filters.
        OSError: the disk is full, or it cannot be written to. The folder is emptied after any error.
    """
    if not hasattr(tarfile, "data_filter"):
        raise CheckpointError(f"{archive}: is unpacked by Python 3.10.12, 3.11.4, 3.12 or later alone: upgrade Python")
    try:
        _unpack(archive, folder)
    except BaseException as error:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if isinstance(error, (_MemberError, tarfile.FilterError)):
            raise CheckpointError(f"{archive}: not unpacked, because {error}") from None
        if isinstance(error, _DAMAGE) or (isinstance(error, OSError) and error.errno in _NAMES):
            raise CheckpointError(f"{archive}: damaged, or not a .tgz archive ({get_first_line(error)})") from error
        raise


def _unpack(archive: Path, folder: Path) -> None:
    size = 0
    with _LimitedGzip(archive) as stream:
        stream.limit = RATIO * archive.stat().st_size + ROOM
        source: Any = stream
        with tarfile.open(fileobj=source, mode="r:") as tar:
            for count, member in enumerate(tar, start=1):
                size += member.size
                if count > MEMBERS:
                    raise _MemberError(f"it has more than {MEMBERS:,} members")
                if size > stream.limit:
                    raise _MemberError(f"it holds more than {stream.limit:,} bytes")
                if not (member.isreg() or member.isdir()):
                    raise _MemberError(f"{member.name!r:.300} in it is a link or a device")
                tar.extract(member, folder, filter="data")
            while stream.read(_PIECE):
                pass  # to the end, where gzip's checksum is
