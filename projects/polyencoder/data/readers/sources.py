"""Opens data files, plain or compressed, and standard input, as byte streams; expands paths and patterns."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

from polyencoder.errors import ConfigError, InputError, get_first_line
from polyencoder.packages import require

BUFFER = 1 << 17
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
ZSTD_WINDOW = 31  # log2 of bytes: dumps are written with `zstd --long=31`, which needs it
# Decompressors get the file in small pieces, whatever they ask for: `DataFile.fraction` is as fine as these.
PIECE = 1 << 14
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
_read: WeakSet[Any] = WeakSet()
"""Standard inputs that were opened."""


class DamagedFile(InputError):
    """A file that cannot be read to its end; the records before are good."""


class DataFile(io.BufferedReader):
    """An open file of decompressed bytes, made by `open_bytes`; `path` names it in errors, `size` is on disk or None.

    Every reader of this package takes one in the place of a path, and leaves it open. So the caller can see how far a
    reader has come, and estimate how many records there are: `len(records_so_far) / file.fraction`.
    """

    def __init__(self, source: _Source, *, path: str, size: int | None) -> None:
        super().__init__(source, BUFFER)
        self.path = path
        self.size = size
        self._source = source
        self._fraction: float | None = None

    def __str__(self) -> str:
        return self.path

    @property
    def fraction(self) -> float | None:
        """The share of the file that has been read, 0 to 1; None if unknown (a pipe, or nothing read yet)."""
        if self._fraction is not None:
            return self._fraction
        if not self.size or not self._source.delivered:
            return None
        # Bytes that are still in buffers count as unread.
        return self._source.count_bytes() / self.size * self.tell() / self._source.delivered

    @fraction.setter
    def fraction(self, value: float) -> None:
        """Sets the share, for readers that know it better, such as Parquet's."""
        self._fraction = value


Source: TypeAlias = "str | os.PathLike[str] | DataFile"


def open_bytes(path: str | os.PathLike[str]) -> DataFile:
    """Opens a file for reading, as a context manager. Decompresses `.gz`, `.bz2`, `.xz`, `.zst`; `-` is standard input.

    Raises:
        InputError: it cannot be opened, or is standard input, which was read before. Reading a damaged or truncated
            file raises `DamagedFile`, an InputError.
    """
    name = os.fspath(path)
    if name == "-":
        stdin: Any = sys.stdin.buffer
        if stdin in _read and not stdin.isatty():
            raise InputError("standard input can be read once, and was read already: give a file for the other")
        _read.add(stdin)
        return DataFile(_Source(stdin.read1, name="standard input"), path="standard input", size=None)
    disk = _open(name)
    status = os.fstat(disk.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    suffix = _get_suffix(name)
    decompressor = DECOMPRESSORS.get(suffix)
    if decompressor is None:
        return DataFile(_Source(disk.read, name=name, disk=disk), path=name, size=size)
    if size == 0:  # gzip would accept it
        disk.close()
        raise InputError(f"{name}: is empty, which no compressed file is: it was cut off")
    try:
        stream = decompressor(disk)
    except ConfigError:
        disk.close()
        raise
    damage = (*DAMAGE, require(ZSTD).ZstdError) if suffix == ".zst" else DAMAGE
    return DataFile(_Source(stream.read1, name=name, disk=disk, stream=stream, damage=damage), path=name, size=size)


def open_source(source: Source) -> AbstractContextManager[DataFile]:
    """Opens a source, and closes it at the end of the `with` block; an open file stays open."""
    return nullcontext(source) if isinstance(source, DataFile) else open_bytes(source)


def is_compressed(path: str) -> bool:
    """Whether `open_bytes` decompresses the file, by its name."""
    return _get_suffix(path) in DECOMPRESSORS


def expand(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Expands paths and glob patterns (also `**`), comma-separated or as a list, to files.

    In the order given, the matches of a pattern sorted; a file that is named twice comes once. A name of
    an existing file is no pattern, whatever characters are in it, and neither is `-` (standard input).

    Raises:
        InputError: a path or pattern that names no file.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    patterns: list[str] = []
    for name in names:
        patterns += [name] if os.path.exists(name) else filter(None, map(str.strip, name.split(",")))
    if not patterns:
        raise InputError(f"no file is named by {', '.join(map(repr, names)) or 'an empty list'}")
    return list(dict.fromkeys(path for pattern in patterns for path in _find_matches(pattern)))


def _find_matches(pattern: str) -> list[str]:
    """The files that one path or pattern names, sorted."""
    if pattern == "-":
        return [pattern]
    if os.path.isdir(pattern):
        raise InputError(f"{pattern}: is a folder; name the files in it, such as {os.path.join(pattern, '*')}")
    if os.path.exists(pattern):
        return [pattern]
    matches = [path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path)]
    if not matches:
        raise InputError(f"{pattern!r}: no such file, and no file matches it as a pattern")
    return sorted(matches)


def _get_suffix(path: str) -> str:
    return Path(path).suffix.lower()


def _open(path: str) -> io.FileIO:
    try:
        return _SmallReads(path) if is_compressed(path) else io.FileIO(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror or error})") from None


class _SmallReads(io.FileIO):
    """A file that returns small pieces."""

    def read(self, size: int | None = -1, /) -> Any:
        return super().read(PIECE if size is None or size < 0 else min(size, PIECE))


class _Source(io.RawIOBase):
    """Counted bytes from a file, a decompressor or standard input; read errors become `DamagedFile`.

    read: gives at most that number of bytes, and none at the end. `read1` of a decompressor: its `read` would throw
    away the good bytes before the damage. disk: the file itself. stream: what decompresses it. damage: the errors of a
    file that is damaged.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        *,
        name: str,
        disk: io.FileIO | None = None,
        stream: io.BufferedIOBase | None = None,
        damage: tuple[type[Exception], ...] = DAMAGE,
    ) -> None:
        self._read = read
        self._errors = damage
        self.name = name
        self._disk = disk
        self._stream = stream
        self.delivered = 0
        self._damage: DamagedFile | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._damage is not None:
            raise self._damage  # a decompressor that is asked again may say that this is the end
        try:
            data = self._read(len(buffer))
        except self._errors as error:
            kind = "damaged or cut off" if self._stream else "cannot be read"
            self._damage = DamagedFile(f"{self.name}: {kind} after {self.delivered:,} bytes ({get_first_line(error)})")
            raise self._damage from None
        buffer[: len(data)] = data
        self.delivered += len(data)
        return len(data)

    def tell(self) -> int:
        return self.delivered

    def count_bytes(self) -> int:
        """The number of bytes read from the file itself."""
        return self._disk.tell() if self._disk else 0

    def close(self) -> None:
        for file in (self._stream, self._disk):
            if file is not None:
                file.close()
        super().close()


def _decompress_zstandard(disk: io.FileIO) -> Any:
    """Decompresses Zstandard frames, one after the other. ConfigError without backports.zstd."""
    zstd = require(ZSTD, extra="data")
    return zstd.ZstdFile(disk, options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW})


DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda disk: gzip.GzipFile(fileobj=disk, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _decompress_zstandard,
}
