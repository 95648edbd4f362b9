"""`FolderIndex`: searches of an index folder in numpy, and by its FAISS index if it has one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.certificate import ShortlistOptions
from polyencoder.index.faiss.lists import FaissLists, check_shortlists
from polyencoder.index.filters import Exactness, check_fields
from polyencoder.index.folder.catalogue import Catalogue, File, check_size
from polyencoder.index.folder.database import Database
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints, IndexMeta
from polyencoder.index.vector_files import first_row
from polyencoder.runtime.faiss import FaissShortlists
from polyencoder.runtime.late import TokenVectors
from polyencoder.runtime.scoring import Contexts, Score
from polyencoder.runtime.vectors import MappedFile, Vectors

__all__ = ["FolderIndex"]


class State(NamedTuple):
    """A committed state of the index, opened."""

    meta: IndexMeta
    vectors: Vectors
    faiss: FaissLists | None


class FolderIndex:
    """An index that `polyencoder index` made, for the model that made it.

    A search sees every change that was committed before it began. Properties and methods are those of
    `polyencoder.index.FolderIndex`.
    """

    remote, rolls_back, missing = False, True, ()

    def __init__(self, folder: str | os.PathLike[str], fingerprints: Fingerprints) -> None:
        """Opens an index. CheckpointError if there is none, it is damaged, or another model made it."""
        self.folder = Path(folder).absolute()
        self._fingerprints = fingerprints
        self._database = Database(self.folder)
        self._mapped: dict[File, MappedFile] = {}
        self._faiss: tuple[str, Any] | None = None  # its file's name, and FAISS's index
        self._database.read(self._opened)

    def __enter__(self) -> FolderIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and files; the index cannot be used afterwards."""
        self._database.close()
        self._mapped, self._faiss = {}, None

    def check_model(self, fingerprints: Fingerprints) -> None:
        """Raises CheckpointError unless the model with these fingerprints made the index."""
        if fingerprints != self._fingerprints:  # which every newest state is checked against
            self._database.read(lambda catalogue: self._meta(catalogue, fingerprints))

    @property
    def address(self) -> str:
        return str(self.folder)

    def __len__(self) -> int:
        """The number of candidates (ids)."""
        return self._database.read(Catalogue.count)

    def check_searchable(self) -> None:
        """Raises CheckpointError if it cannot be searched now."""
        self._database.read(self._opened)

    def changing(self) -> NoReturn:
        raise ConfigError("an index is changed where torch is installed, by `polyencoder update`", where=self.folder)

    def check(self, options: ShortlistOptions) -> None:
        """Checks the settings of searches.

        Raises:
            InputError: the index has no such metadata field or no such kind of values in it, unless a value is None.
            ConfigError: an option needs a FAISS index, which this one has not, or another kind of it; or faiss is not
                installed.
        """

        def ask(catalogue: Catalogue) -> None:
            if catalogue.count():
                check_fields(options.filter, has_field=catalogue.has_field)
            state = self._opened(catalogue, faiss=options.exactness != "exact")
            check_shortlists(options, state.meta.faiss, folder=self.folder)

        self._database.read(ask)

    def search(
        self,
        contexts: Contexts,
        score: Score,
        options: ShortlistOptions,
        *,
        k: int,
    ) -> tuple[list[list[Hit]], int]:
        """The k best candidates of each context, and the number of different texts that pass the filter.

        `k`, at least 1, is in place of the options' `top_k`.
        """

        def ask(catalogue: Catalogue) -> tuple[list[list[Hit]], int]:
            _, vectors, faiss = self._opened(catalogue, faiss=options.exactness != "exact")
            if not catalogue.count():
                return [[] for _ in range(len(contexts))], 0
            allowed = catalogue.allowed(options.filter)
            available = len(vectors) if allowed is None else int(allowed.sum())
            most = min(k, available)
            if faiss is None or faiss.scans(options, k=most, allowed=None if allowed is None else available):
                found: Sequence[Exactness] = ["exact"] * len(contexts)
                best = vectors.best(lambda some: score(contexts, some), contexts=len(contexts), k=most, allowed=allowed)
                scores, rows = best.scores.tolist(), best.rows.tolist()
            else:
                engine = FaissShortlists(faiss, vectors, contexts, score, options, k=most, allowed=allowed)
                results = faiss.search(engine, options)
                found = [result.found for result in results]
                scores, rows = ([getattr(result, name).tolist() for result in results] for name in ("scores", "rows"))
            return catalogue.hits(scores, rows, found, most=k, filter=options.filter), available

        return self._database.read(ask)

    def token_vectors(self, texts: Iterable[str], fingerprint: str | None) -> dict[str, TokenVectors]:
        """The stored vectors of these texts, if they are of a ranker with this `token_fingerprint`."""
        wanted = [*texts]  # a change of the index meanwhile asks again

        def ask(catalogue: Catalogue) -> dict[str, TokenVectors]:
            meta, vectors, _ = self._opened(catalogue)
            if meta.tokens is None or meta.tokens.fingerprint != fingerprint:
                return {}
            rows = catalogue.rows_of_texts(wanted)
            places = np.array([*rows.values()], dtype=np.int64)
            both = zip(vectors.take(places), vectors.token_vectors(places), strict=True)
            return {text: TokenVectors(*one) for text, one in zip(rows, both, strict=True)}

        return self._database.read(ask)

    def _meta(self, catalogue: Catalogue, fingerprints: Fingerprints) -> IndexMeta:
        """The newest description. CheckpointError if it has other fingerprints."""
        meta = IndexMeta.parsed(catalogue.description(), self.folder)
        meta.check_model(fingerprints, where=self.folder)
        return meta

    def _opened(self, catalogue: Catalogue, *, faiss: bool = False) -> State:
        """The newest state, with its FAISS index if asked for; files that were open before are not opened again."""
        meta = self._meta(catalogue, self._fingerprints)
        mapped: dict[File, MappedFile] = {}
        row = 0
        for file in catalogue.files():
            if not file.rows:
                continue
            if (known := self._mapped.get(file)) is None:
                check_size(self.folder, file)
                known = MappedFile.open(self.folder / file.name, dim=meta.dim, dtype=meta.dtype, tokens=meta.tokens)
            if first_row(file.name) != row:
                raise CheckpointError(f"{self.folder}: the rows before {file.name} are missing: the index is damaged")
            mapped[file] = known
            row += len(known.rows)
        if not row == meta.rows == catalogue.rows:
            raise CheckpointError(f"{self.folder}: its files hold {row} vectors for {meta.rows} texts; build it again")
        self._mapped = mapped
        lists, known_faiss = None, self._faiss
        if known_faiss is not None and (meta.faiss is None or meta.faiss.file != known_faiss[0]):
            known_faiss = self._faiss = None  # replaced or dropped: its memory is given back
        if faiss and meta.faiss is not None:
            known_index = None if known_faiss is None else known_faiss[1]
            lists = FaissLists(meta.faiss, self.folder, dim=meta.dim, rows=row, index=known_index)
            self._faiss = meta.faiss.file, lists.index
        return State(meta, Vectors([*mapped.values()], dim=meta.dim), lists)
