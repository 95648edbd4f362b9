"""Sources of candidate vectors, which a scan reads in blocks."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from polyencoder.search.contexts import Array

_BATCH_SIZE = 1 << 12  # rows that are in memory in float64


class QuantizedRows(NamedTuple):
    """Rows in 8 bits, and how far they are from the vectors."""

    rows: Array
    """int8 [n, dim]: a vector is about its row times its scale."""
    bounds: Array
    """float32 [n, 3]: the scale; the length of the row times its scale, and its distance from the vector, at least."""

    @classmethod
    def from_vectors(cls, vectors: Array) -> QuantizedRows:
        """The rows of float32 vectors [n, dim], which are finite."""
        parts = [_quantize(vectors[i : i + _BATCH_SIZE]) for i in range(0, len(vectors), _BATCH_SIZE)]
        if not parts:
            return cls(np.empty(vectors.shape, np.int8), np.empty((0, 3), np.float32))
        return cls.concatenate(parts)

    @classmethod
    def concatenate(cls, parts: Sequence[QuantizedRows]) -> QuantizedRows:
        """The rows of all parts, in order."""
        return cls(np.concatenate([part.rows for part in parts]), np.concatenate([part.bounds for part in parts]))

    def select(self, positions: slice | Array) -> QuantizedRows:
        """The rows at these positions."""
        return QuantizedRows(self.rows[positions], self.bounds[positions])


class Block(NamedTuple):
    """Consecutive rows, or a selection of them."""

    first: int
    stored: Array
    """[n, dim]: floats, int8, or uint16 with the bits of bfloat16, a type that numpy does not have."""
    quantized: QuantizedRows | None = None
    """The same in 8 bits, if the source has them; its scales are those of `stored` in int8."""
    positions: Array | None = None
    """The selected rows of `stored`; None for all."""

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.stored if self.positions is None else self.positions)

    def get_row_ids(self, positions: Array) -> Array:
        """The numbers in the source of these rows of the block."""
        return self.first + (positions if self.positions is None else self.positions[positions])

    def read_vectors(self, positions: slice | Array = slice(None)) -> Array:
        """The vectors of these rows of the block, float32 or float64 [n, dim]."""
        inside = positions if self.positions is None else self.positions[positions]
        if isinstance(inside, slice):
            advise(self.stored, "NORMAL")
        elif self.stored.dtype != np.int8:  # which has been read already
            prefetch(self.stored, inside)
        stored = self.stored[inside]
        if stored.dtype == np.uint16:  # the first half of a float32's bits
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if stored.dtype == np.int8 and self.quantized is not None:
            return stored.astype(np.float32) * self.quantized.bounds[positions, :1]
        return stored if stored.dtype == np.float64 else stored.astype(np.float32, copy=False)

    def slice_rows(self, rows: slice) -> Block:
        """The rows of a slice of all, views."""
        return Block(self.first + rows.start, self.stored[rows], self.quantized and self.quantized.select(rows))

    def select(self, positions: Array) -> Block:
        """The rows at these positions; rows in 8 bits are copied."""
        return Block(self.first, self.stored, self.quantized and self.quantized.select(positions), positions)


def advise(array: Array, how: str) -> None:
    """Tells the system how a mapped array will be read: "NORMAL", in order, or "RANDOM", without the pages around it.

    Where the system takes no advice, and for other arrays, nothing happens; the same holds for `prefetch`.
    """
    if (mapped := getattr(array, "_mmap", None)) is not None and hasattr(mmap, f"MADV_{how}"):
        mapped.madvise(getattr(mmap, f"MADV_{how}"))


def prefetch(array: Array, rows: Array) -> None:
    """Asks for the pages of these rows of a mapped array at once: a disk reads them side by side."""
    if (mapped := getattr(array, "_mmap", None)) is None or not hasattr(mmap, "MADV_WILLNEED") or not len(rows):
        return
    begin = array.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    starts = begin + np.unique(rows) * array.strides[0]
    firsts, lasts = starts // mmap.PAGESIZE, (starts + array.strides[0] - 1) // mmap.PAGESIZE
    apart = np.flatnonzero(firsts > np.append(-2, lasts[:-1]) + 1)
    for first, last in zip(firsts[apart].tolist(), lasts[[*apart[1:] - 1, -1]].tolist(), strict=True):
        mapped.madvise(mmap.MADV_WILLNEED, first * mmap.PAGESIZE, (last + 1 - first) * mmap.PAGESIZE)


def _quantize(vectors: Array) -> QuantizedRows:
    limits = np.finfo(np.float32)
    scales = np.maximum(np.abs(vectors).max(axis=1, initial=0) / np.float32(127), limits.tiny)
    rows = np.rint(vectors / scales[:, None]).astype(np.int8)
    wide = rows * scales[:, None].astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    wide -= vectors
    bounds = np.stack([scales, round_up(lengths), round_up(np.linalg.norm(wide, axis=1))], axis=1)
    return QuantizedRows(rows, bounds)


def round_up(numbers: Array) -> Array:
    """Converts to float32 numbers that are at least as large."""
    with np.errstate(over="ignore"):  # to infinity, which keeps every row
        return np.nextafter((numbers * (1 + 1e-6)).astype(np.float32), np.float32(np.inf))


class Rows(Protocol):
    """Vectors that can be read in order: an array, the files of an index, the pages of a server."""

    dim: int

    def __len__(self) -> int:
        """The number of rows."""

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """All rows in order, at most `size` in a block."""


class ArrayRows:
    """An array of floats, [n, dim], as `Rows`."""

    def __init__(self, vectors: Array) -> None:
        self.dim = int(vectors.shape[1])
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def iter_blocks(self, size: int) -> Iterator[Block]:
        for first in range(0, len(self._vectors), size):
            yield Block(first, self._vectors[first : first + size])
