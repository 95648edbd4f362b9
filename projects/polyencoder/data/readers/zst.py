"""Zstandard, which dumps of Reddit are compressed with: a stream that tells when a file was cut off."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from polyencoder.packages import require

__all__ = ["decompressed"]

WINDOW = 1 << 31  # bytes: dumps are written with `zstd --long=31`, which nobody reads without saying so
PIECE = 1 << 16


def decompressed(disk: Any) -> io.BufferedIOBase:
    """The bytes of a file in one Zstandard frame or several.

    Reading raises OSError where it is damaged, EOFError where it is cut off. Raises ConfigError where the package is
    not installed.
    """
    zstandard = require("zstandard", extra="data")
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    return _Frames(disk, decompressor.decompressobj, error=zstandard.ZstdError)


class _Frames(io.BufferedIOBase):
    """Frame after frame, each by a decompressor of its own."""

    def __init__(self, disk: Any, new: Callable[[], Any], *, error: type[Exception]) -> None:
        self._disk, self._new, self._error = disk, new, error
        self._frame: Any = None  # which is read; None between two
        self._compressed, self._ready = b"", b""

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        while not self._ready and self._fill():
            pass
        size = len(self._ready) if size < 0 else size
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _fill(self) -> bool:
        """Decompress some more; whether there was any."""
        self._compressed = self._compressed or self._disk.read(PIECE)
        if not self._compressed:
            if self._frame is not None:
                raise EOFError("the file ends within a frame")
            return False
        if self._frame is None:
            self._frame = self._new()
        try:
            self._ready = self._frame.decompress(self._compressed)
        except self._error as error:
            raise OSError(str(error)) from None
        self._compressed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True
