"""Sources of candidate vectors for a scan: whatever can be read in order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Chunks", "Piece", "Rows", "TensorRows", "pieces"]

# Of a piece that has fewer allowed rows than this share, those are copied out; otherwise all are scored.
_FEW = 0.5


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


def pieces(rows: Chunks, size: int, *, first: int, k: int, allowed: Tensor | None, like: Tensor) -> Iterator[Piece]:
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
    for start, chunk in rows.chunks(size):
        while len(chunk):
            piece, chunk = chunk.tensor_split([len(chunk) if come >= k else first])
            indices = torch.arange(start, start + len(piece))
            scales = rows.scales(start, start + len(piece))
            start += len(piece)
            permitted = None if allowed is None else allowed[indices[0] : start].cpu()
            if permitted is not None:
                count = int(permitted.sum())
                if count == 0:
                    continue
                if count < _FEW * len(piece):
                    kept = permitted.nonzero().squeeze(1)
                    piece, indices = piece[kept.to(piece.device)], indices[kept]
                    scales, permitted = None if scales is None else scales[kept], None
                elif count == len(piece):
                    permitted = None
            come += len(piece) if permitted is None else count
            if scales is not None:
                piece = piece.to(like.device, wide).mul_(scales.to(like.device, wide).unsqueeze(1))
            yield Piece(
                indices.to(like.device), piece.to(like), None if permitted is None else permitted.to(like.device)
            )
