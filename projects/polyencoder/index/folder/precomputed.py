"""Writes precomputed vectors of candidates into the shards of a new index folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import IndexMeta
from polyencoder.index.precomputed import is_same_vector
from polyencoder.index.vectors import MappedFile, map_file, quantize, write_vectors


class PrecomputedShards:
    """Collects the vectors of a catalogue's rows while it is filled. One shard is in memory; the others are files.

    As a context manager, removes the files after an error.
    """

    def __init__(self, folder: Path, plan: IndexMeta) -> None:
        self._folder, self._plan = folder, plan
        self._shard: list[Candidate] = []
        self._files: list[MappedFile] = []

    def __enter__(self) -> PrecomputedShards:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for path in self._folder.glob(f"vectors-*-{self._plan.build}.*"):
                path.unlink(missing_ok=True)

    def put(self, row: int, candidate: Candidate) -> None:
        """Adds the vector of a candidate with this row's text. InputError if the row has another or it is too large."""
        assert candidate.vector is not None
        shard, offset = divmod(row, self._plan.shard_size)
        if (shard, offset) == (len(self._files), len(self._shard)):
            self._shard.append(candidate)
            if len(self._shard) == self._plan.shard_size:
                self.flush()
            return
        stored = self._shard[offset].vector if shard == len(self._files) else _read_vector(self._files[shard], offset)
        assert stored is not None
        # int8 may change a vector by more than 1 %, and changes an equal one alike
        if not is_same_vector(stored, candidate.vector) and not is_same_vector(
            stored, _read_vector(self._round([candidate]), 0)
        ):
            raise InputError(
                f"{candidate.where or repr(candidate.id)}: its text, {candidate.text!r:.60}, occurred before with "
                "another vector; an index has one vector per text"
            )

    def flush(self) -> None:
        """Writes the last shard."""
        if not self._shard:
            return
        first, plan = self._plan.shard_size * len(self._files), self._plan
        path = write_vectors(self._folder, first, *self._round(self._shard)[:2], tag=plan.build)
        self._files.append(map_file(path, dim=plan.dim, dtype=plan.dtype))
        self._shard = []

    def _round(self, candidates: Sequence[Candidate]) -> MappedFile:
        vectors = np.stack([candidate.vector for candidate in candidates if candidate.vector is not None])
        texts = [candidate.text for candidate in candidates]
        return MappedFile(*quantize(vectors, self._plan.dtype, texts=texts))


def _read_vector(file: MappedFile, row: int) -> np.ndarray[Any, Any]:
    vector: np.ndarray[Any, Any] = file.read_vectors(slice(row, row + 1))[0]
    return vector
