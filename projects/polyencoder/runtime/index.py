"""`FolderIndex`: exact searches of an index folder, in numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.filters import Exactness, Filter, checked_filter
from polyencoder.index.folder.catalogue import Catalogue, File, check_size
from polyencoder.index.folder.database import Database
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints, IndexMeta
from polyencoder.index.vector_files import ON_DISK, beside, first_row, map_array
from polyencoder.text.batches import Array

__all__ = ["FolderIndex"]

ROWS = 1 << 12  # scored at once


class MappedFile(NamedTuple):
    """A file of vectors, mapped into memory."""

    rows: Array
    """[n, dim], as stored."""
    scales: Array | None
    """float32 [n], of int8 rows."""

    def vectors(self, places: slice) -> Array:
        """The vectors of these rows, float32 [n, dim]."""
        stored = self.rows[places]
        if stored.dtype == np.uint16:  # the bits of bfloat16, the first half of a float32's
            return (stored.astype(np.uint32) << 16).view(np.float32)
        vectors = stored.astype(np.float32, copy=False)
        return vectors if self.scales is None else vectors * self.scales[places, None]


class FolderIndex:
    """An index that `polyencoder index` made, for the model that made it.

    A search sees every change that was committed before it began. Properties and methods are those of
    `polyencoder.index.FolderIndex`.
    """

    remote, rolls_back, missing = False, True, ()

    def __init__(self, folder: str | os.PathLike[str], fingerprints: Sequence[Fingerprints]) -> None:
        """Opens an index. CheckpointError if there is none, it is damaged, or another model made it.

        `fingerprints` are those that the model's indexes may have.
        """
        self.folder = Path(folder).absolute()
        self._fingerprints = fingerprints
        self._database = Database(self.folder)
        self._mapped: dict[File, MappedFile] = {}
        self._database.read(self._opened)

    def __enter__(self) -> FolderIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the index cannot be used afterwards."""
        self._database.close()

    def check_model(self, fingerprints: Sequence[Fingerprints]) -> None:
        """Raises CheckpointError unless the model with these fingerprints made the index."""
        if fingerprints != self._fingerprints:  # which every newest state is checked against
            self._database.read(lambda catalogue: self._meta(catalogue, fingerprints))

    @property
    def address(self) -> str:
        return str(self.folder)

    @property
    def addresses(self) -> list[str]:
        return [self.address]

    def __len__(self) -> int:
        """The number of candidates (ids)."""
        return self._database.read(len)

    def check_searchable(self) -> None:
        """Raises CheckpointError if it cannot be searched now."""
        self._database.read(self._opened)

    def changing(self) -> NoReturn:
        raise ConfigError(f"{self.folder}: an index is changed where torch is installed, by `polyencoder update`")

    def check(self, filter: Filter | None) -> None:
        """Raises InputError if the index is empty, or has no such metadata field, unless a value is None."""

        def ask(catalogue: Catalogue) -> None:
            if not len(catalogue):
                raise InputError("the index is empty")
            for key, values in checked_filter(filter).items():
                if None not in values and not catalogue.has_field(key):
                    raise InputError(
                        f"cannot filter by {key!r}: no candidate of the index has this metadata field",
                        argument="filter",
                    )

        self._database.read(ask)

    def search(
        self, score: Callable[[Array], Array], *, k: int, filter: Filter | None = None
    ) -> tuple[list[list[Hit]], int]:
        """The k best candidates of each context, and the number of different texts that pass the filter.

        Args:
            score: vectors [n, dim] -> scores [contexts, n].
            k: at least 1.
            filter: metadata fields and their values.
        """

        def ask(catalogue: Catalogue) -> tuple[list[list[Hit]], int]:
            files = self._opened(catalogue)
            if not files:  # since `check`
                raise InputError("the index is empty")
            allowed = self._allowed(catalogue, filter, rows=sum(len(file.rows) for file in files))
            scores, rows = _best(files, score, allowed, k=k)
            exact: list[Exactness] = ["exact"] * len(scores)
            hits = catalogue.hits(scores.tolist(), rows.tolist(), exact, most=k, filter=filter)
            return hits, int(allowed.sum())

        return self._database.read(ask)

    def _meta(self, catalogue: Catalogue, fingerprints: Sequence[Fingerprints]) -> IndexMeta:
        """The newest description. CheckpointError if it has none of the fingerprints."""
        meta = IndexMeta.parsed(catalogue.description(), self.folder)
        known = (one for one in fingerprints if one.fits(meta.fingerprints))
        meta.check_model(next(known, fingerprints[0]), where=self.folder)
        return meta

    def _opened(self, catalogue: Catalogue) -> list[MappedFile]:
        """The files of the newest state, in row order; those that were open before are not opened again."""
        meta = self._meta(catalogue, self._fingerprints)
        mapped: dict[File, MappedFile] = {}
        row = 0
        for file in catalogue.files():
            if not file.rows:
                continue
            if (known := self._mapped.get(file)) is None:
                check_size(self.folder, file)
                known = _map(self.folder / file.name, meta)
            if first_row(file.name) != row:
                raise CheckpointError(f"{self.folder}: the rows before {file.name} are missing: the index is damaged")
            mapped[file] = known
            row += len(known.rows)
        if not row == meta.rows == catalogue.rows:
            raise CheckpointError(f"{self.folder}: its files hold {row} vectors for {meta.rows} texts; build it again")
        self._mapped = mapped
        return [*mapped.values()]

    def _allowed(self, catalogue: Catalogue, filter: Filter | None, *, rows: int) -> Array:
        """bool [rows], True where a living entry passes the filter."""
        mask = np.full(rows, not filter)
        if filter:
            mask[catalogue.matching(filter)[0]] = True
        else:
            mask[catalogue.dead_rows()] = False
        return mask


def _map(path: Path, meta: IndexMeta) -> MappedFile:
    rows = map_array(path, np.dtype(ON_DISK[meta.dtype]), shape=(-1, meta.dim))
    if meta.dtype != "int8":
        return MappedFile(rows, None)
    return MappedFile(rows, map_array(beside(path)["scales"], np.dtype(np.float32), shape=(len(rows),)))


def _best(files: list[MappedFile], score: Callable[[Array], Array], allowed: Array, *, k: int) -> tuple[Array, Array]:
    """The scores and rows of the k best allowed rows of each context, [contexts, <= k]; equal ones by their row."""
    first = 0
    scores = rows = None
    for file in files:
        for start in range(0, len(file.rows), ROWS):
            places = slice(start, min(start + ROWS, len(file.rows)))
            passing = np.flatnonzero(allowed[first + places.start : first + places.stop])
            if not len(passing):
                continue
            new = score(file.vectors(places))[:, passing]
            if np.isnan(new).any():
                raise InputError("the model's scores are nan: its weights, or the index, are damaged")
            own = np.broadcast_to(first + start + passing, new.shape)
            scores = new if scores is None else np.concatenate([scores, new], axis=1)
            rows = own if rows is None else np.concatenate([rows, own], axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        first += len(file.rows)
    if scores is None or rows is None:
        empty = np.empty((len(score(np.zeros((1, files[0].rows.shape[1]), np.float32))), 0))
        return empty, empty.astype(np.int64)
    return scores, rows
