"""Token vectors of candidates in an index folder, beside its files of vectors.

`vectors-ROW-TAG.tokens.npy`, [tokens, dim], has the token vectors of the rows of `vectors-ROW-TAG.npy`, one row's after
the other's, as int8 or float16; `vectors-ROW-TAG.offsets.npy`, int64 [rows + 1], says where each row's begin, and where
the last one's end. A token vector has length 1, so that an int8 one needs no scale: it is divided by its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from polyencoder.errors import CheckpointError, InputError
from polyencoder.search.contexts import Array
from polyencoder.validation import Count, validated

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel


TokenDtype = Literal["int8", "float16"]


@validated
class StoredTokens:
    """Which token vectors an index holds."""

    dtype: TokenDtype
    dim: Count
    fingerprint: str
    """The digest of the weights behind the candidate tower that they depend on."""

    @classmethod
    def from_model(cls, model: RankerModel, dtype: TokenDtype) -> StoredTokens:
        """Describes this model's token vectors. InputError for a model without any."""
        if model.token_dim is None:
            raise InputError(
                f"a {model.title} compares no token vectors that an index could hold; store_tokens is for a "
                "late-interaction encoder",
                argument="store_tokens",
            )
        return cls(dtype=dtype, dim=model.token_dim, fingerprint=model.token_fingerprint or "")


_BLOCK = 1 << 10  # rows that are copied at once


class TokenRows(NamedTuple):
    """The token vectors of some rows, as stored."""

    stored: Array
    """[tokens, dim], int8 or float16."""
    offsets: Array
    """int64 [rows + 1]: the tokens of row i are those from offsets[i] to offsets[i + 1]."""

    @classmethod
    def empty(cls, lengths: Sequence[int], tokens: StoredTokens) -> TokenRows:
        """Room for rows of these numbers of tokens."""
        offsets = _compute_offsets(np.array(lengths, dtype=np.int64))
        return cls(np.empty((int(offsets[-1]), tokens.dim), dtype=tokens.dtype), offsets)

    def put(self, rows: Sequence[int], read: Sequence[Array]) -> None:
        """Stores the tokens of candidates, each [tokens, dim], in these rows.

        A number of a vector of length 1 changes by at most 1/254 of the vector's largest (int8), or 1 part in 2,048
        (float16).
        """
        tokens = np.concatenate(read).astype(np.float32, copy=False)
        if self.stored.dtype == np.int8:
            largest = np.maximum(np.abs(tokens).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            tokens = np.rint(tokens * (127 / largest))
        self.stored[self._list_positions(np.array(rows, dtype=np.int64))] = tokens.astype(self.stored.dtype)

    @classmethod
    def concatenate(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """The rows of all parts, in order."""
        lengths = [np.diff(part.offsets) for part in parts]
        return cls(np.concatenate([part.stored for part in parts]), _compute_offsets(np.concatenate(lengths)))

    @classmethod
    def copy_rows(cls, parts: Sequence[tuple[TokenRows, Array, Array]]) -> TokenRows:
        """A copy of rows of several files, at least one row.

        Each part is a file, the rows of the result that come from it, and their rows in the file, int64.
        A block is copied at a time, so that memory holds the result alone.
        """
        lengths = np.empty(sum(len(rows) for _, _, rows in parts), dtype=np.int64)
        for part, positions, rows in parts:
            starts, ends = part._read_bounds(rows)
            lengths[positions] = ends - starts
        offsets, first = _compute_offsets(lengths), parts[0][0].stored
        copy = cls(np.empty((int(offsets[-1]), first.shape[1]), first.dtype), offsets)
        for part, positions, rows in parts:
            for i in range(0, len(positions), _BLOCK):
                copy.stored[copy._list_positions(positions[i : i + _BLOCK])] = part.stored[
                    part._list_positions(rows[i : i + _BLOCK])
                ]
        return copy

    def _read_bounds(self, rows: Array) -> tuple[Array, Array]:
        """Where the tokens of each of these rows begin and end."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        if (starts < 0).any() or (ends <= starts).any() or (ends > len(self.stored)).any():
            raise CheckpointError("the offsets of an index's token vectors are damaged: build the index again")
        return starts, ends

    def _list_positions(self, rows: Array) -> Array:
        """The positions in `stored` of the tokens of these rows, row by row."""
        starts, ends = self._read_bounds(rows)
        before = _compute_offsets(ends - starts)
        positions: Array = np.repeat(starts - before[:-1], ends - starts) + np.arange(int(before[-1]))
        return positions

    def list_vectors(self) -> list[Array]:
        """The token vectors of each row, float32 [tokens, dim] of length 1."""
        tokens = self.stored.astype(np.float32)
        tokens /= np.sqrt(np.einsum("ij,ij->i", tokens, tokens))[:, None].clip(1e-12)  # `norm` would copy them
        return np.split(tokens, self.offsets[1:-1])


def _compute_offsets(lengths: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
