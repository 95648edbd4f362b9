"""An index folder as it is at one moment. A change makes another state; it never writes to the files of an older one.

`meta.json` names the files of the newest state, and replacing it is what makes a change: a reader has the state before
or the one after. It holds the files of its state open, so that they may be removed as soon as another is named; and who
comes between reading `meta.json` and opening what it names finds a newer one there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from polyencoder.errors import CheckpointError
from polyencoder.index.approximate import FaissSearch
from polyencoder.index.base import Hit
from polyencoder.index.catalogue import Catalogue
from polyencoder.index.meta import META, Fingerprints, IndexMeta
from polyencoder.index.options import Filter, Found, SearchOptions
from polyencoder.index.vectors import Vectors

__all__ = ["State", "newest"]


class State:
    """What `meta.json` named when it was read, opened.

    Args:
        folder: of the index.
        meta: the description.
        text: as it stands in the file.
        before: an older state that is open; what it shares with this one is not opened again.

    Raises:
        CheckpointError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, meta: IndexMeta, *, text: bytes = b"", before: State | None = None) -> None:
        self.folder = folder
        self.meta = meta
        self.text = text
        self.catalogue = Catalogue.open(folder / meta.catalogue)
        self.vectors = Vectors.open(
            folder, dim=meta.dim, dtype=meta.dtype, rows=self.catalogue.rows, names=meta.vectors
        )
        self._faiss: FaissSearch | None = None
        if before is not None and before._faiss is not None and before.meta.faiss == meta.faiss:
            self._faiss = before._faiss.over(self.vectors)

    @property
    def faiss(self) -> FaissSearch:
        """Its FAISS index, opened when it is first asked for: an exact search and a change do without.

        Raises:
            ConfigError: faiss is not installed.
            CheckpointError: it is damaged; or gone, because there is a newer state.
        """
        if self._faiss is None:
            self._faiss = FaissSearch.open(self.folder, self.vectors, name=self.meta.faiss or "")
        return self._faiss

    def allowed_rows(self, filter: Filter | None = None) -> Tensor | None:
        """bool [rows], True where a living entry passes the filter; None if that is everywhere."""
        if filter:
            allowed = torch.zeros(len(self.vectors), dtype=torch.bool)
            allowed[self.catalogue.rows_matching(filter)] = True
            return allowed
        dead = self.catalogue.dead_rows()
        if len(dead) == 0:
            return None
        allowed = torch.ones(len(self.vectors), dtype=torch.bool)
        allowed[dead] = False
        return allowed

    def hits(self, scores: Tensor, rows: Tensor, found: Sequence[Found], options: SearchOptions) -> list[list[Hit]]:
        """What stands in the rows [batch, k] with these scores, found [batch] so.

        Entries that share a row come one after the other.
        """
        wanted = set(rows.flatten().tolist())
        texts = self.catalogue.text_of(wanted)
        entries = self.catalogue.entries_of(wanted, filter=options.filter)
        return [
            [
                Hit(id_, texts[row], score, metadata, how)
                for row, score in zip(row_list, score_list, strict=True)
                for id_, metadata in entries[row]
            ][: options.top_k]
            for row_list, score_list, how in zip(rows.tolist(), scores.tolist(), found, strict=True)
        ]


def newest(folder: Path, fingerprints: Fingerprints, *, before: State | None = None) -> State:
    """The newest state of an index: `before`, if that still is it, or if the index was taken away.

    Raises:
        CheckpointError: there is no finished index, it is damaged, or another model made it.
    """
    while True:
        try:
            text = IndexMeta.text(folder)
        except CheckpointError:
            if before is None:
                raise
            return before
        if before is not None and text == before.text:
            return before
        meta = IndexMeta.parsed(text, folder / META)
        meta.check_model(fingerprints, folder=folder)
        try:
            return State(folder, meta, text=text, before=before)
        except CheckpointError:
            if text == IndexMeta.text(folder):
                raise  # not because another process has gone on meanwhile
