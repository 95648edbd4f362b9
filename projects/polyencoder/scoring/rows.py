"""Sources of candidate vectors for a scan: whatever can be read in order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Chunks", "Rows", "TensorRows"]


class Chunks(Protocol):
    """Rows of vectors that can be read in order: a tensor, the files of an index, the pages of a server."""

    @property
    def dim(self) -> int:
        """Numbers of a vector."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """In which they are kept: a float, or int8, where a vector is its row times its scale."""
        ...

    @property
    def device(self) -> torch.device:
        """Where they are kept."""
        ...

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def chunks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """All rows in order, as (first row, [n <= size, dim] as they are kept)."""
        ...

    def scales(self, start: int, stop: int) -> Tensor | None:
        """float32 [stop - start], what int8 rows are to be multiplied with; None for floats."""
        ...


class Rows(Chunks, Protocol):
    """Rows that can also be picked."""

    def take(self, rows: Tensor) -> Tensor:
        """The vectors of these rows (int64 [n], in any order), floats [n, dim]."""
        ...


class TensorRows:
    """A tensor [n, dim] of floats, in memory or memory-mapped, as `Rows`."""

    def __init__(self, vectors: Tensor) -> None:
        self.dim = vectors.size(1)
        self.dtype = vectors.dtype
        self.device = vectors.device
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def chunks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(self._vectors), size):
            yield first, self._vectors[first : first + size]

    def scales(self, start: int, stop: int) -> Tensor | None:
        return None

    def take(self, rows: Tensor) -> Tensor:
        return self._vectors[rows.to(self.device)]
