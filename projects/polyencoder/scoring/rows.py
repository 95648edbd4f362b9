"""Sources of candidate vectors: read in chunks by a scan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# If a smaller share of a block's rows is allowed, these are copied out; otherwise all are scored.
_SPARSE = 0.5


class Chunk(NamedTuple):
    """Consecutive rows."""

    first: int
    rows: Tensor
    """[n, dim], as stored."""
    scales: Tensor | None = None
    """float32 [n], the scales of int8 rows; None for floats."""


class VectorStream(Protocol):
    """Vectors that can be read in order: a tensor, the files of an index, the pages of a server."""

    dim: int
    """The dimension of a vector."""
    dtype: torch.dtype
    """As stored: a float, or int8, where a vector is its row times its scale."""
    device: torch.device
    """The device that holds them."""

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, at most `size` in a chunk."""
        ...


class VectorSource(VectorStream, Protocol):
    """Vectors that can also be read by row."""

    def take(self, rows: Tensor) -> Tensor:
        """The vectors of these rows (int64 [n], in any order), floats [n, dim]."""
        ...


class TensorSource:
    """A float tensor [n, dim], in memory or memory-mapped, as a `VectorSource`."""

    def __init__(self, vectors: Tensor) -> None:
        self.dim = vectors.size(1)
        self.dtype = vectors.dtype
        self.device = vectors.device
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def chunks(self, size: int) -> Iterator[Chunk]:
        for first in range(0, len(self._vectors), size):
            yield Chunk(first, self._vectors[first : first + size])

    def take(self, rows: Tensor) -> Tensor:
        return self._vectors[rows.to(self.device)]


class RowBlock(NamedTuple):
    """Rows to score, in the scan's dtype and on its device."""

    indices: Tensor
    """int64 [n], their row numbers."""
    vectors: Tensor
    """[n, dim]."""
    allowed: Tensor | None
    """bool [n], True for rows that may be found; None if all may."""

    def allowed_of(self, scores: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Selects the allowed rows of scores [batch, n], or [batch, kept]: their scores and row numbers."""
        indices = self.indices if kept is None else self.indices[kept]
        if self.allowed is None:
            return scores, indices
        allowed = self.allowed if kept is None else self.allowed[kept]
        return scores[:, allowed], indices[allowed]


def blocks(
    rows: VectorStream, size: int, *, first: int, k: int, allowed: Tensor | None, like: Tensor
) -> Iterator[RowBlock]:
    """Reads rows in order, converted to the dtype and device of `like`; int8 rows are scaled.

    Args:
        size: the most rows of a block.
        first: the most rows of a block until `k` allowed rows were read.
        k: see `first`.
        allowed: bool [rows], True for rows that may be found; None for all. Blocks without any are not read.
        like: see above.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    n_read = 0
    for start, chunk, scales in rows.chunks(size):
        stop = 0
        while stop < len(chunk):
            part = slice(stop, len(chunk) if n_read >= k else min(stop + first, len(chunk)))
            indices = torch.arange(start, start + len(chunk))[part]
            block, scale, stop = chunk[part], None if scales is None else scales[part], stop + len(indices)
            permitted = None if allowed is None else allowed[start:][part].cpu()
            if permitted is not None:
                count = int(permitted.sum())
                if count == 0:
                    continue
                if count < _SPARSE * len(block):
                    kept = permitted.nonzero().squeeze(1)
                    block, indices = block[kept.to(block.device)], indices[kept]
                    scale, permitted = None if scale is None else scale[kept], None
                elif count == len(block):
                    permitted = None
            n_read += len(block) if permitted is None else count
            if scale is not None:
                block = block.to(like.device, wide).mul_(scale.to(like.device, wide).unsqueeze(1))
            yield RowBlock(
                indices.to(like.device), block.to(like), None if permitted is None else permitted.to(like.device)
            )
