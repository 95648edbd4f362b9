"""Writes given vectors of candidates into the shards of a new index folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.given import same_vector
from polyencoder.index.meta import IndexMeta
from polyencoder.index.vectors import MappedFile, map_file, quantize, write_vectors


class GivenShards:
    """Collects the vectors of a catalogue's rows while it is filled. One shard is in memory; the others are files.

    As a context manager, removes the files after an error.
    """

    def __init__(self, folder: Path, plan: IndexMeta) -> None:
        self._folder = folder
        self._plan = plan
        self._shard: list[np.ndarray[Any, Any]] = []
        self._texts: list[str] = []
        self._files: list[MappedFile] = []

    def __enter__(self) -> GivenShards:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for path in self._folder.glob(f"vectors-*-{self._plan.build}.*"):
                path.unlink(missing_ok=True)

    def put(self, row: int, candidate: Candidate) -> None:
        """Adds the vector of a candidate whose text has this row, new or existing.

        Raises InputError if the text had another vector before, or if this one is too large for the dtype.
        """
        assert candidate.vector is not None
        size = self._plan.shard_size
        first = size * len(self._files)
        if row == first + len(self._texts):
            self._shard.append(candidate.vector)
            self._texts.append(candidate.text)
            if len(self._texts) == size:
                self.flush()
        elif not self._is_known(row, candidate):
            raise InputError(
                f"{candidate.where or repr(candidate.id)}: its text, {candidate.text!r:.60}, occurred before with "
                "another vector; an index has one vector per text"
            )

    def flush(self) -> None:
        """Writes the last shard."""
        if not self._texts:
            return
        first, plan = self._plan.shard_size * len(self._files), self._plan
        stored = quantize(torch.from_numpy(np.stack(self._shard)), plan.dtype, texts=self._texts)
        path = write_vectors(self._folder, first, *stored, tag=plan.build)
        self._files.append(map_file(path, dim=plan.dim, dtype=plan.dtype))
        self._shard, self._texts = [], []

    def _is_known(self, row: int, candidate: Candidate) -> bool:
        """Whether a row has its vector, or one that a file would hold alike: int8 may change it by more than 1 %."""
        vector = candidate.vector
        assert vector is not None
        shard, place = divmod(row, self._plan.shard_size)
        if shard == len(self._files):
            return same_vector(self._shard[place], vector)
        known = _vector(self._files[shard], place)
        if same_vector(known, vector):
            return True
        rounded = quantize(torch.from_numpy(vector[None]), self._plan.dtype, texts=[candidate.text])
        return same_vector(known, _vector(MappedFile(*rounded), 0))


def _vector(file: MappedFile, place: int) -> np.ndarray[Any, Any]:
    vector = file.rows[place].float()
    return (vector if file.scales is None else vector * file.scales[place]).numpy()
