"""Sources of candidate vectors, which a scan reads in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Block(NamedTuple):
    """Consecutive rows."""

    first: int
    stored: Array
    """[n, dim]: floats, int8, or uint16 with the bits of bfloat16, a type that numpy does not have."""
    scales: Array | None = None
    """float32 [n], of int8 rows, whose vectors are the rows times their scales; None for floats."""

    def vectors(self, places: slice | Array = slice(None)) -> Array:
        """The vectors of these rows of the block, float32 or float64 [n, dim]."""
        stored = self.stored[places]
        if stored.dtype == np.uint16:  # the first half of a float32's bits
            return (stored.astype(np.uint32) << 16).view(np.float32)
        vectors = stored if stored.dtype == np.float64 else stored.astype(np.float32, copy=False)
        return vectors if self.scales is None else vectors * self.scales[places, None]

    def part(self, rows: slice) -> Block:
        """The rows of a slice, views."""
        scales = None if self.scales is None else self.scales[rows]
        return Block(self.first + rows.start, self.stored[rows], scales)

    def select(self, places: Array) -> Block:
        """Copies of some rows, which no longer follow each other."""
        scales = None if self.scales is None else self.scales[places]
        return Block(self.first, self.stored[places], scales)


class Rows(Protocol):
    """Vectors that can be read in order: an array, the files of an index, the pages of a server."""

    dim: int

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def chunks(self, size: int) -> Iterator[Block]:
        """All rows in order, at most `size` in a block."""
        ...


class ArrayRows:
    """An array of floats, [n, dim], as `Rows`."""

    def __init__(self, vectors: Array) -> None:
        self.dim = int(vectors.shape[1])
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def chunks(self, size: int) -> Iterator[Block]:
        for first in range(0, len(self._vectors), size):
            yield Block(first, self._vectors[first : first + size])
