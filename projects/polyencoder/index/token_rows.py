"""Token vectors of candidates in an index folder, beside its files of vectors.

`vectors-ROW-TAG.tokens.npy`, [tokens, dim], has the token vectors of the rows of `vectors-ROW-TAG.npy`, one row's after
the other's, as int8 or float16; `vectors-ROW-TAG.offsets.npy`, int64 [rows + 1], says where each row's begin, and where
the last one's end. A token vector has length 1, so that an int8 one needs no scale: it is divided by its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.errors import CheckpointError
from polyencoder.index.stored_tokens import StoredTokens
from polyencoder.scoring.tokens import TokenVectors

_BLOCK = 1 << 10  # rows that are copied at once


class TokenRows(NamedTuple):
    """The token vectors of some rows, as stored."""

    stored: Tensor
    """[tokens, dim], int8 or float16."""
    offsets: Tensor
    """int64 [rows + 1]: the tokens of row i are those from offsets[i] to offsets[i + 1]."""

    @classmethod
    def empty(cls, lengths: Sequence[int], tokens: StoredTokens) -> TokenRows:
        """Room for rows of these numbers of tokens."""
        offsets = _offsets(torch.tensor(lengths, dtype=torch.int64))
        return cls(torch.empty(int(offsets[-1]), tokens.dim, dtype=getattr(torch, tokens.dtype)), offsets)

    def put(self, rows: Sequence[int], read: Sequence[TokenVectors]) -> None:
        """Stores candidates in these rows.

        A number of a vector of length 1 changes by at most 1/254 of the vector's largest (int8), or 1 part in 2,048
        (float16).
        """
        tokens = torch.cat([one.tokens for one in read]).float().cpu()
        if self.stored.dtype == torch.int8:
            largest = tokens.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            tokens = (tokens * (127 / largest)).round_()
        self.stored[self._places(torch.tensor(rows))] = tokens.to(self.stored.dtype)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """The rows of one part after those of another."""
        lengths = [part.offsets.diff() for part in parts]
        return cls(torch.cat([part.stored for part in parts]), _offsets(torch.cat(lengths)))

    @classmethod
    def taken(cls, parts: Sequence[tuple[TokenRows, Tensor, Tensor]]) -> TokenRows:
        """A copy of rows of several files, at least one row.

        Each part is a file's rows, the places of those to copy among the result's, and their rows in the file, int64.
        A block is copied at a time, so that memory holds the result alone.
        """
        lengths = torch.empty(sum(len(places) for _, places, _ in parts), dtype=torch.int64)
        for part, places, rows in parts:
            starts, ends = part._bounds(rows)
            lengths[places] = ends - starts
        offsets, first = _offsets(lengths), parts[0][0].stored
        found = cls(first.new_empty(int(offsets[-1]), first.size(1)), offsets)
        for part, places, rows in parts:
            for some, own in zip(places.split(_BLOCK), rows.split(_BLOCK), strict=True):
                found.stored[found._places(some)] = part.stored[part._places(own)]
        return found

    def _bounds(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where the tokens of each of these rows begin and end."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        if (starts < 0).any() or (ends <= starts).any() or (ends > len(self.stored)).any():
            raise CheckpointError("the offsets of an index's token vectors are damaged: build the index again")
        return starts, ends

    def _places(self, rows: Tensor) -> Tensor:
        """Where the tokens of these rows are, one row's after the other's."""
        starts, ends = self._bounds(rows)
        before = _offsets(ends - starts)
        return torch.repeat_interleave(starts - before[:-1], ends - starts) + torch.arange(int(before[-1]))

    def vectors(self, device: torch.device) -> list[Tensor]:
        """The token vectors of each row, float32 [tokens, dim] of length 1."""
        tokens = F.normalize(self.stored.to(device).float(), dim=-1)
        return list(tokens.split(self.offsets.diff().tolist()))


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
