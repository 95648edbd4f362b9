"""The next state of an index, while it is made: in files of its own, which nobody reads until `meta.json` names them.

So a change is whole or not at all, whatever interrupts it, and those who search meanwhile find the state before.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import filelock
import torch
from torch import Tensor

from polyencoder.encoding import encode_candidates
from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.files import onto_the_disk
from polyencoder.index.approximate import FaissSearch
from polyencoder.index.catalogue import Catalogue
from polyencoder.index.faiss_file import Tuned, build_faiss, copy_faiss, faiss_files
from polyencoder.index.meta import META, IndexMeta, separable
from polyencoder.index.state import State
from polyencoder.index.tuning import sample
from polyencoder.index.vectors import Vectors, quantize, scales_file, vectors_file, write_vectors
from polyencoder.protocol import TextRanker

__all__ = ["OF_AN_INDEX", "Change", "IndexBusy", "explained", "lock"]

OF_AN_INDEX = re.compile(
    r"(meta|unfinished)\.json|catalogue(-\d+)?\.sqlite.*|vectors-\d+(-[0-9a-f]+)?(\.scales)?\.npy|faiss.*\.(json|index)"
    r"|\.lock|\..*\.part"
)
"""What the files of an index folder are called."""

_LOCK = ".lock"
_BUSY_SECONDS = 30


class IndexBusy(InputError):
    """Another process is changing the index, and has been for a while."""


class Change:
    """What becomes of a state: a copy of its catalogue that is changed, and files beside its own.

    Args:
        state: the newest of an index, whose `lock` this process has.
        ranker: the model, which new texts need.
    """

    def __init__(self, state: State, ranker: TextRanker | None) -> None:
        self.folder = state.folder
        self._before = state
        self._ranker = ranker
        self._draft: Catalogue | None = None
        self._compacted = False
        self._meta = replace(state.meta, vectors=state.vectors.names)
        self._remove_others(state.meta)  # what was killed has left them

    @property
    def catalogue(self) -> Catalogue:
        """The texts and entries, to be changed."""
        if self._draft is None:
            path = self._new_catalogue()
            self._draft = Catalogue.copied(self._before.catalogue.path, path)
        return self._draft

    @property
    def _newest(self) -> Catalogue:
        """The texts and entries, to be read."""
        return self._before.catalogue if self._draft is None else self._draft

    def compact(self) -> None:
        """Leave out the dead rows, and make full files of small ones; a FAISS index of the rows as they were goes.

        What would stay the same is left as it is.
        """
        vectors, old = self._encoded(), self._newest
        living = torch.ones(len(vectors), dtype=torch.bool)
        living[old.dead_rows()] = False
        size = self._meta.shard_size
        pieces = {i * size: rows for i, rows in enumerate(living.nonzero().squeeze(1).split(size)) if len(rows)}
        names = {first: _file_of(rows, vectors) if first == rows[0] else None for first, rows in pieces.items()}
        if living.all() and None not in names.values():
            return
        path = self._new_catalogue()
        old.copy_living(path)
        if self._draft is not None:
            self._draft.close()
        self._draft, self._compacted = Catalogue.draft(path), True
        for first, rows in pieces.items():
            if names[first] is None:
                texts = self._draft.texts(first, first + len(rows))
                names[first] = write_vectors(self.folder, first, *vectors.stored(rows), texts=texts).name
        self._meta = replace(self._meta, vectors=tuple(name for name in names.values() if name), faiss=None)

    def build_faiss(self, kind: str, **overrides: int | str) -> None:
        """See `polyencoder.index.faiss_file.build_faiss`."""
        vectors, name = self._encoded(), self._new_name("faiss-{}")
        build_faiss(self.folder, vectors, kind=kind, name=name, **overrides)
        self._meta = replace(self._meta, faiss=name)

    def tune_faiss(self, choose: Callable[[FaissSearch, Tensor | None], Tuned]) -> Tuned:
        """Give the FAISS index the settings that `choose` finds for it and the living rows (None for all).

        Raises:
            ConfigError: there is no FAISS index.
        """
        if (name := self._meta.faiss) is None:
            raise ConfigError(f"{self.folder}: has no FAISS index to measure; build one with it", argument="faiss")
        searcher = FaissSearch.open(self.folder, self._encoded(), name=name)
        living: Tensor | None = None
        if len(dead := self._newest.dead_rows()):
            living = torch.ones(len(searcher.vectors), dtype=torch.bool)
            living[dead] = False
        tuned = choose(searcher, living)
        meta = replace(searcher.meta, tuned=tuned)
        if name == self._before.meta.faiss:  # whose description others read
            new = self._new_name("faiss-{}")
            copy_faiss(self.folder, meta, name=name, to=new)
            self._meta = replace(self._meta, faiss=new)
        else:
            meta.write(self.folder, name=name)
        return tuned

    def some_texts(self, n: int) -> list[str]:
        """Up to `n` of the texts that there will be, the same each time."""
        newest = self._newest
        living = torch.ones(newest.rows, dtype=torch.bool)
        living[newest.dead_rows()] = False
        return list(newest.text_of(sample(living.nonzero().squeeze(1).tolist(), n)).values())

    def publish(self) -> None:
        """Make it the newest state, if anything is other than before, and remove what no state needs any more."""
        vectors = self._encoded()
        if self._draft is not None:
            self._draft.close()
            if not self._compacted and self._draft.changes == 0:
                self._meta = replace(self._meta, catalogue=self._before.meta.catalogue)
        other = self._meta.catalogue != self._before.meta.catalogue
        if not other and self._meta.faiss == self._before.meta.faiss:
            self._remove_others(self._before.meta)
            return
        meta = replace(self._meta, rows=len(vectors), candidates=None if other else self._meta.candidates)
        for name in sorted(_files(meta) - _files(self._before.meta)):
            with suppress(FileNotFoundError):  # a kind of FAISS index, or a scale, that there is not
                onto_the_disk(self.folder / name)
        meta.write(self.folder)
        onto_the_disk(self.folder)
        self._remove_others(meta, vectors=True)

    def discard(self, *, vectors: bool) -> None:
        """Leave the index as it was. `vectors`: also without those that wait for the same change to be made again."""
        if self._draft is not None:
            self._draft.close()
        with suppress(OSError):
            self._remove_others(replace(self._before.meta, vectors=self._before.vectors.names), vectors=vectors)

    def _encoded(self) -> Vectors:
        """The vectors of all texts, among them those that were added and are encoded now."""
        names, catalogue = list(self._meta.vectors or ()), self._newest
        start = len(Vectors.open(self.folder, dim=self._meta.dim, dtype=self._meta.dtype, names=names))
        for first in range(start, catalogue.rows, self._meta.shard_size):
            texts = catalogue.texts(first, first + self._meta.shard_size)
            path = vectors_file(self.folder, first, texts=texts)
            if not path.exists():
                self._encode(texts, first)
            names.append(path.name)
        self._meta = replace(self._meta, vectors=tuple(names))
        return Vectors.open(self.folder, dim=self._meta.dim, dtype=self._meta.dtype, rows=catalogue.rows, names=names)

    def _encode(self, texts: list[str], first: int) -> None:
        if self._ranker is None:
            raise InputError(
                f"{self.folder}: was opened without its model, which new texts need; open it with a Ranker"
            )
        vectors = encode_candidates(separable(self._ranker), self._ranker.text, texts, remember=False)
        write_vectors(self.folder, first, *quantize(vectors, self._meta.dtype, texts=texts), texts=texts)

    def _new_catalogue(self) -> Path:
        name = self._new_name("catalogue-{}.sqlite")
        self._meta = replace(self._meta, catalogue=name)
        return self.folder / name

    def _new_name(self, pattern: str) -> str:
        """A name that no file of this index had before."""
        self._meta = replace(self._meta, generation=self._meta.generation + 1)
        return pattern.format(self._meta.generation)

    def _remove_others(self, meta: IndexMeta, *, vectors: bool = False) -> None:
        """Remove the index's files that this state does not have, vectors only if told.

        Who searches an older state has its files open, so that they stay until they are closed.
        """
        kept = _files(meta)
        for name in os.listdir(self.folder):
            if OF_AN_INDEX.fullmatch(name) and name not in kept and (vectors or not name.startswith("vectors-")):
                (self.folder / name).unlink(missing_ok=True)


def lock(folder: Path) -> filelock.BaseFileLock:
    """The right to change an index: one process at a time has it, until it releases it or ends.

    Raises InputError if another keeps it for half a minute.
    """
    held = filelock.FileLock(folder / _LOCK, timeout=_BUSY_SECONDS)
    try:
        held.acquire()
    except filelock.Timeout:
        raise IndexBusy(f"{folder}: cannot be changed now; is another process at it?") from None
    return held


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Make errors of the disk ours, a full one above all. The index is then as it was before the change."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise InputError(
            f"{folder}: cannot be changed ({first_line(error)}); mend that and run the same command again"
        ) from error


def _files(meta: IndexMeta) -> set[str]:
    """The names of a state's files, and of some that it need not have."""
    vectors = meta.vectors or ()
    scales = (scales_file(Path(name)).name for name in vectors)
    return {META, _LOCK, meta.catalogue, *vectors, *scales, *(faiss_files(meta.faiss) if meta.faiss else ())}


def _file_of(rows: Tensor, vectors: Vectors) -> str | None:
    """The file that has just these rows."""
    first, last = int(rows[0]), int(rows[-1])
    return vectors.file_of(first, len(rows)) if last - first + 1 == len(rows) else None
