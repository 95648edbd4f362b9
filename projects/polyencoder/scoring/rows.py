"""Sources of candidate vectors for a scan: whatever can be read in order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Chunk", "Piece", "TensorSource", "VectorSource", "VectorStream", "pieces"]

# Of a piece that has fewer allowed rows than this share, those are copied out; otherwise all are scored.
_FEW = 0.5


class Chunk(NamedTuple):
    """Rows that follow each other."""

    first: int
    rows: Tensor
    """[n, dim], as stored."""
    scales: Tensor | None = None
    """float32 [n], by which int8 rows are multiplied; None for floats."""


class VectorStream(Protocol):
    """Rows of vectors that can be read in order: a tensor, the files of an index, the pages of a server."""

    dim: int
    """Numbers of a vector."""
    dtype: torch.dtype
    """In which they are kept: a float, or int8, where a vector is its row times its scale."""
    device: torch.device
    """The device that holds them."""

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, `size` at most in a chunk."""
        ...


class VectorSource(VectorStream, Protocol):
    """Rows of vectors that can be picked, too."""

    def take(self, rows: Tensor) -> Tensor:
        """The vectors of these rows (int64 [n], in any order), floats [n, dim]."""
        ...


class TensorSource:
    """A tensor [n, dim] of floats, in memory or memory-mapped, as `VectorSource`."""

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


class Piece(NamedTuple):
    """Some rows as a scan scores them."""

    indices: Tensor
    """int64 [n], which rows they are."""
    vectors: Tensor
    """[n, dim], of the dtype and on the device where the scan runs."""
    permitted: Tensor | None
    """bool [n], True for the rows that may be found; None if all may."""

    def allowed_of(self, scores: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of the scores [batch, n] of the piece's rows, or of those `kept`, the ones of rows that may be found.

        And which rows these are.
        """
        indices = self.indices if kept is None else self.indices[kept]
        if self.permitted is None:
            return scores, indices
        among = self.permitted if kept is None else self.permitted[kept]
        return scores[:, among], indices[among]


def pieces(
    rows: VectorStream, size: int, *, first: int, k: int, allowed: Tensor | None, like: Tensor
) -> Iterator[Piece]:
    """The rows in order, floats of the dtype and on the device of `like`, int8 ones times their scales.

    Args:
        rows: where they are.
        size: the most rows of a piece.
        first: the most of a piece until `k` rows that are allowed have come.
        k: see `first`.
        allowed: bool [rows], True for the rows that may be found; None for all. Pieces without any are not read.
        like: see above.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    come = 0
    for start, chunk, scales in rows.chunks(size):
        stop = 0
        while stop < len(chunk):
            part = slice(stop, len(chunk) if come >= k else min(stop + first, len(chunk)))
            indices = torch.arange(start, start + len(chunk))[part]
            piece, scale, stop = chunk[part], None if scales is None else scales[part], stop + len(indices)
            permitted = None if allowed is None else allowed[start:][part].cpu()
            if permitted is not None:
                count = int(permitted.sum())
                if count == 0:
                    continue
                if count < _FEW * len(piece):
                    kept = permitted.nonzero().squeeze(1)
                    piece, indices = piece[kept.to(piece.device)], indices[kept]
                    scale, permitted = None if scale is None else scale[kept], None
                elif count == len(piece):
                    permitted = None
            come += len(piece) if permitted is None else count
            if scale is not None:
                piece = piece.to(like.device, wide).mul_(scale.to(like.device, wide).unsqueeze(1))
            yield Piece(
                indices.to(like.device), piece.to(like), None if permitted is None else permitted.to(like.device)
            )
