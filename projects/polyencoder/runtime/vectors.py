"""The vectors of an index in numpy: read by rows, and scored completely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.stored_tokens import StoredTokens
from polyencoder.index.vector_files import ON_DISK, VectorDtype, beside, map_array
from polyencoder.text.batches import Array

ROWS = 1 << 12  # scored at once


class MappedFile(NamedTuple):
    """A file of vectors, mapped into memory."""

    rows: Array
    """[n, dim], as stored."""
    scales: Array | None
    """float32 [n], of int8 rows."""
    tokens: Array | None = None
    """[tokens, token_dim], as stored; None if the index stores none."""
    offsets: Array | None = None
    """int64 [n + 1]: the tokens of row i are those from offsets[i] to offsets[i + 1]."""

    @classmethod
    def open(
        cls, path: Path, *, dim: int, dtype: VectorDtype = "float32", tokens: StoredTokens | None = None
    ) -> MappedFile:
        """Maps a file. CheckpointError if it is missing, truncated, or of another shape or dtype."""
        rows, others = map_array(path, np.dtype(ON_DISK[dtype]), shape=(-1, dim)), beside(path)
        scales = map_array(others["scales"], np.dtype(np.float32), shape=(len(rows),)) if dtype == "int8" else None
        if tokens is None:
            return cls(rows, scales)
        stored = map_array(others["tokens"], np.dtype(tokens.dtype), shape=(-1, tokens.dim))
        return cls(rows, scales, stored, map_array(others["offsets"], np.dtype(np.int64), shape=(len(rows) + 1,)))

    def vectors(self, places: slice | Array) -> Array:
        """The vectors of these rows, float32 [n, dim]."""
        stored = self.rows[places]
        if stored.dtype == np.uint16:  # the bits of bfloat16, the first half of a float32's
            return (stored.astype(np.uint32) << 16).view(np.float32)
        vectors = stored.astype(np.float32, copy=False)
        return vectors if self.scales is None else vectors * self.scales[places, None]

    def token_vectors(self, row: int) -> Array:
        """The token vectors of a row, float32 [tokens, token_dim] of length 1."""
        assert self.tokens is not None
        assert self.offsets is not None
        first, end = self.offsets[row : row + 2].tolist()
        if not 0 <= first < end <= len(self.tokens):
            raise CheckpointError("the offsets of an index's token vectors are damaged: build the index again")
        vectors = self.tokens[first:end].astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


class TopK(NamedTuple):
    """The best candidates of each context."""

    scores: Array
    """[contexts, n]"""
    rows: Array
    """int64 [contexts, n]"""

    def first(self, k: int) -> TopK:
        """The k best, best first; of equal ones the first."""
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, :k]
        return TopK(np.take_along_axis(self.scores, order, 1), np.take_along_axis(self.rows, order, 1))


class Vectors:
    """All vectors of an index, in the order of their rows.

    Args:
        files: in this order, too.
    """

    def __init__(self, files: Sequence[MappedFile], *, dim: int) -> None:
        self.dim = dim
        self._files = files
        self._starts = np.cumsum([0, *(len(file.rows) for file in files)])

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    def take(self, rows: Array) -> Array:
        """The vectors of these rows, int64 in any order: float32 [len(rows), dim]."""
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        file_of = np.searchsorted(self._starts, rows, side="right") - 1
        for file in np.unique(file_of):
            places = file_of == file
            vectors[places] = self._files[file].vectors(rows[places] - self._starts[file])
        return vectors

    def token_vectors(self, rows: Array) -> list[Array]:
        """The token vectors of each of these rows, of an index that stores them."""
        file_of = np.searchsorted(self._starts, rows, side="right") - 1
        places = zip(file_of.tolist(), (rows - self._starts[file_of]).tolist(), strict=True)
        return [self._files[file].token_vectors(row) for file, row in places]

    def best(self, score: Callable[[Array], Array], *, contexts: int, k: int, allowed: Array | None) -> TopK:
        """The k best of the allowed rows of each context; equal ones by their row. InputError for scores that are nan.

        Args:
            score: vectors [n, dim] -> scores [contexts, n].
            allowed: bool [rows]; None for all.
        """
        best = TopK(np.empty((contexts, 0), dtype=np.float32), np.empty((contexts, 0), dtype=np.int64))
        for rows, vectors in self._blocks(allowed):
            scores = checked_scores(score(vectors))
            if best.scores.shape[1] == k:  # almost all are below the kept ones
                promising = (scores > best.scores[:, -1:]).any(axis=0)
                scores, rows = scores[:, promising], rows[promising]
            if len(rows):
                own = np.broadcast_to(rows, scores.shape)
                both = np.concatenate([best.scores, scores], axis=1), np.concatenate([best.rows, own], axis=1)
                best = TopK(*both).first(k)
        return best

    def _blocks(self, allowed: Array | None) -> Iterator[tuple[Array, Array]]:
        """The allowed rows, in order, with their vectors: at most `ROWS` at once."""
        for file, first in zip(self._files, self._starts.tolist(), strict=False):
            for start in range(0, len(file.rows), ROWS):
                block = slice(start, min(start + ROWS, len(file.rows)))
                rows = np.arange(first + block.start, first + block.stop)
                passing = None if allowed is None else allowed[rows[0] : rows[-1] + 1]
                if passing is None or passing.all():
                    yield rows, file.vectors(block)  # without a copy
                elif passing.any():
                    yield rows[passing], file.vectors(block.start + np.flatnonzero(passing))


def checked_scores(scores: Array) -> Array:
    """The scores. InputError for a nan."""
    if np.isnan(scores).any():
        raise InputError("the model's scores are nan: its weights, or the index, are damaged")
    return scores
