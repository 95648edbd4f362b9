"""Archives from outside, unpacked so that nothing leaves the folder.

Only files and folders are accepted, under names that stay within. That is stricter than tarfile's own `data` filter,
and the same on every version of Python: some 3.10 and 3.11 have no such filter.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PureWindowsPath

from polyencoder.errors import CheckpointError, first_line


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a `.tgz` archive into an empty folder.

    Raises:
        CheckpointError: it is damaged, or a member is a link or a device or would be written outside the folder. What
            came before that member is in the folder.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _check(member, archive)
                _write(tar, member, folder / member.name)
            while tar.fileobj and tar.fileobj.read(1 << 20):
                pass  # gzip's own checksum is behind the last member
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CheckpointError(f"{archive}: damaged, or not a .tgz archive ({first_line(error)})") from error


def _check(member: tarfile.TarInfo, archive: Path) -> None:
    path = PureWindowsPath(member.name)  # knows the separators, roots and drives of every system
    if path.anchor or ".." in path.parts:
        raise CheckpointError(f"{archive}: not unpacked, because {member.name!r} in it would leave the folder")
    if not (member.isreg() or member.isdir()):
        raise CheckpointError(f"{archive}: not unpacked, because {member.name!r} in it is a link or a device")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # it is a file
    with source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
