"""`FolderIndex`: an index in a folder, opened in milliseconds, searched, and changed in place.

A change appends: new texts get new rows and a new file of vectors; what is removed leaves a dead row. The catalogue's
transaction comes last, so a kill leaves the old index, with at most a file behind the last row that nobody looks at.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyencoder.encoding import encode_candidates
from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.index.approximate import FaissSearch
from polyencoder.index.base import Candidate, Filter, Found, Hit, Index, check_exactness, checked_top_k
from polyencoder.index.catalogue import CATALOGUE, Catalogue
from polyencoder.index.exact import scan
from polyencoder.index.faiss_file import build_faiss, has_faiss
from polyencoder.index.meta import META, Fingerprints, IndexMeta, separable
from polyencoder.index.vectors import Vectors, quantize, remove_vectors, write_vectors
from polyencoder.protocol import TextRanker
from polyencoder.scoring import ContextEncoding

T = TypeVar("T")

_OF_AN_INDEX = re.compile(
    r"meta\.json|unfinished\.json|catalogue\.sqlite.*|vectors-\d+(\.scales)?\.npy|faiss\.json|faiss-.*\.index|\..*\.part"
)


class FolderIndex(Index):
    """An index that `build_index` made. One process at a time may change it, while any number search."""

    def __init__(self, folder: Path, meta: IndexMeta, ranker: TextRanker | None, *, attention: str = "basic") -> None:
        self.folder = folder
        self.meta = meta
        self.attention = attention
        self._ranker = ranker
        self.catalogue = Catalogue.open(folder)
        self.vectors = self._map()
        self._faiss: FaissSearch | None = None
        self._lists: dict[str, Any] = {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], ranker: TextRanker | Fingerprints, *, attention: str = "basic"
    ) -> FolderIndex:
        """Open an index for the model that made it.

        Reads neither texts nor vectors.

        Args:
            path: the folder.
            ranker: the model, whose fingerprints are computed; or its fingerprints, from who has them already and does
                not add texts.
            attention: a poly-encoder's `poly_attention`; a ranker knows its own.

        Raises:
            CheckpointError: if there is no finished index, it is damaged, or another model made it.
        """
        folder = Path(path)
        _mend(folder)
        meta = IndexMeta.read(folder)
        if isinstance(ranker, Fingerprints):
            meta.check_model(ranker, folder=folder)
            return cls(folder, meta, None, attention=attention)
        meta.check_model(Fingerprints.of(ranker), folder=folder)
        return cls(folder, meta, ranker, attention=ranker.model.config.poly_attention)

    def count(self, filter: Filter | None = None) -> int:
        return self.catalogue.count(filter) if filter else len(self.catalogue)

    # Searching

    def search(
        self, contexts: ContextEncoding, *, top_k: int, filter: Filter | None = None, exactness: Found | None = None
    ) -> list[list[Hit]]:
        """As in `Index.search`: with the FAISS index if the folder has one, else by scoring everything."""
        top_k = checked_top_k(top_k, available=len(self))
        check_exactness(exactness)
        allowed = self.allowed_rows(filter)
        if exactness == "exact" or not has_faiss(self.folder):
            scores, rows = scan(contexts, self.vectors, top_k=top_k, allowed=allowed, attention=self.attention)
            return self.hits(scores, rows, top_k=top_k, found=["exact"] * len(rows), filter=filter)
        scores, rows, found = self._approximate().search(
            contexts,
            top_k=top_k,
            allowed=allowed,
            attention=self.attention,
            exactness=exactness or "approximate",
            **self._lists,
        )
        return self.hits(scores, rows, top_k=top_k, found=found, filter=filter)

    def tune(
        self, *, list_length: int | None = None, effort: int | None = None, tolerance: float | None = None
    ) -> None:
        """As in `Index.tune`; ConfigError where there is no FAISS index."""
        settings: dict[str, Any] = {"list_length": list_length, "effort": effort, "tolerance": tolerance}
        given = {name: value for name, value in settings.items() if value is not None}
        if given and not has_faiss(self.folder):
            raise ConfigError(
                f"{self.folder}: {', '.join(given)} given, but it has no FAISS index that this would be of use to; "
                "build one by `polyencoder update --faiss auto`"
            )
        if given:
            self._approximate().check(**given)
        self._lists = given

    def build_faiss(self, kind: str = "auto", **overrides: int | str) -> None:
        """Make the search indexed, by FAISS: see `polyencoder.index.faiss_file.build_faiss` for kinds and settings."""
        with _explained(self.folder):
            build_faiss(self.folder, self.vectors, kind=kind, **overrides)
        self._faiss = None

    def _approximate(self) -> FaissSearch:
        if self._faiss is None:
            self._faiss = FaissSearch.open(self.folder, self.vectors)
        return self._faiss

    def allowed_rows(self, filter: Filter | None = None) -> Tensor | None:
        """bool [rows], True where a living entry passes the filter; None if that is everywhere."""
        allowed = torch.ones(len(self.vectors), dtype=torch.bool)
        if filter:
            matching = self.catalogue.rows_matching(filter)
            allowed[:] = False
            allowed[matching[matching < len(allowed)]] = True  # another process may have added rows since
            return allowed
        dead = self.catalogue.dead_rows()
        allowed[dead[dead < len(allowed)]] = False
        return allowed if len(dead) else None

    def hits(
        self, scores: Tensor, rows: Tensor, *, top_k: int, found: Sequence[Found], filter: Filter | None = None
    ) -> list[list[Hit]]:
        """What stands in the rows [batch, k] with these scores, found [batch] so.

        Entries that share a row come one after the other.
        """
        wanted = set(rows.flatten().tolist())
        texts = self.catalogue.text_of(wanted)
        entries = self.catalogue.entries_of(wanted, filter=filter)
        return [
            [
                Hit(id_, texts[row], score, metadata, how)
                for row, score in zip(row_list, score_list, strict=True)
                for id_, metadata in entries[row]
            ][:top_k]
            for row_list, score_list, how in zip(rows.tolist(), scores.tolist(), found, strict=True)
        ]

    # Changing

    def add(self, records: Iterable[Candidate]) -> None:
        """Put in new candidates; those that are there already with this text and metadata are left as they are.

        Every `shard_size` records are one step: killed and started again with the same records, it goes on. Raises
        InputError for a record that cannot be used; the steps before it stay.
        """
        self._change(records, self.catalogue.put)

    def remove(self, ids: Iterable[str]) -> None:
        """Take candidates out. Their texts and vectors stay on disk until `compact`."""
        self._change(ids, self.catalogue.remove)

    def update(self, records: Iterable[Candidate]) -> None:
        """Give candidates that are there another text or other metadata; each needs its id."""

        def replace_entry(record: Candidate) -> None:
            if record.id is None:
                raise InputError(f"{record.where or 'a record'}: has no id; an update says by its id what is updated")
            self.catalogue.remove(record.id)
            self.catalogue.put(record)

        self._change(records, replace_entry)

    def compact(self) -> None:
        """Write the index anew without its dead rows, beside it, and take its place. Nothing is encoded again.

        Small files of vectors become full ones. An approximate index of the old rows goes with them.
        """
        new = _beside(self.folder, "compacted")
        shutil.rmtree(new, ignore_errors=True)
        with _explained(self.folder), self.catalogue.changing():  # nobody adds what the new index would lack
            try:
                self._write_living(new)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
            _exchange(self.folder)
        self.catalogue.close()
        self.catalogue = Catalogue.open(self.folder)
        self.vectors, self._faiss = self._map(), None

    def _write_living(self, new: Path) -> None:
        new.mkdir()
        self.vectors = self._map()
        self.catalogue.copy_living(new / CATALOGUE)
        living = torch.ones(len(self.vectors), dtype=torch.bool)
        living[self.catalogue.dead_rows()] = False
        for i, rows in enumerate(living.nonzero().squeeze(1).split(self.meta.shard_size)):
            write_vectors(new, i * self.meta.shard_size, *self.vectors.stored(rows))
        self.meta.write(new)

    def _change(self, items: Iterable[T], change: Callable[[T], None]) -> None:
        """Apply the change to each item, `shard_size` of them in a transaction, and encode the texts that are new."""
        for step in _steps(items, self.meta.shard_size):
            with _explained(self.folder), self.catalogue.changing():
                if self.meta.candidates is not None:  # no longer what it was built from
                    self.meta = replace(self.meta, candidates=None)
                    self.meta.write(self.folder)
                before = self.catalogue.rows
                for item in step:
                    change(item)
                self._encode(before, self.catalogue.rows)
            self.vectors, self._faiss = self._map(), None

    def _encode(self, start: int, stop: int) -> None:
        remove_vectors(self.folder, from_row=start)  # of a change that was killed
        if start == stop:
            return
        if self._ranker is None:
            raise InputError(
                f"{self.folder}: was opened without its model, which new texts need; open it with a Ranker"
            )
        texts = self.catalogue.texts(start, stop)
        vectors = encode_candidates(separable(self._ranker), self._ranker.text, texts, remember=False)
        write_vectors(self.folder, start, *quantize(vectors, self.meta.dtype))

    def _map(self) -> Vectors:
        return Vectors.open(self.folder, dim=self.meta.dim, dtype=self.meta.dtype, rows=self.catalogue.rows)


def remove_index(folder: str | os.PathLike[str]) -> None:
    """Remove an index, finished or not, if there is one. InputError if other things are there, which stay."""
    path = Path(folder)
    if not path.exists():
        return
    names = [] if path.is_file() else sorted(entry.name for entry in path.iterdir())
    strange = [name for name in names if not _OF_AN_INDEX.fullmatch(name)]
    if path.is_file() or strange:
        what = f"has {strange[0]} in it" if strange else "is a file"
        raise InputError(f"{path}: {what}, which belongs to no index; give another folder for the index")
    (path / META).unlink(missing_ok=True)  # first: what a kill leaves is then no index any more
    shutil.rmtree(path)


def _steps(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while step := list(islice(iterator, size)):
        yield step


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Make errors of the disk ours, a full one above all. The index is then as it was before the step."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise InputError(
            f"{folder}: cannot be changed ({first_line(error)}); mend that and run the same command again"
        ) from error


def _beside(folder: Path, what: str) -> Path:
    folder = folder.absolute()
    return folder.parent / f".{folder.name}.{what}"


def _exchange(folder: Path) -> None:
    """Put the compacted index, which is whole, in the place of the old one."""
    new, old = _beside(folder, "compacted"), _beside(folder, "replaced")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _mend(folder: Path) -> None:
    """Finish an exchange that was killed between its two renames."""
    if not folder.exists() and (_beside(folder, "compacted") / META).is_file():
        _exchange(folder)
