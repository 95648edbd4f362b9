"""A committed state of an index folder: its description, and its files, opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyencoder.errors import CheckpointError
from polyencoder.index.faiss.search import FaissSearch, scan_vectors
from polyencoder.index.filters import Filter, parse_filter
from polyencoder.index.folder.catalogue import Catalogue, check_size
from polyencoder.index.hits import Hit, Method
from polyencoder.index.meta import IndexMeta
from polyencoder.index.model import IndexModel
from polyencoder.index.options import SearchOptions
from polyencoder.index.vectors import Vectors
from polyencoder.index.words import split_query_words
from polyencoder.search.contexts import Array, Contexts, check_finite
from polyencoder.search.scores import score

_FILTERS = 16  # cached filters


class State:
    """The immutable files of one state, with cached filters.

    Texts and entries stay in the database: methods that need them take the `Catalogue` of a snapshot of this state.

    Args:
        model: it must have made the index.
        before: an earlier state; shared files are not opened again.

    Raises:
        CheckpointError: a file is missing or damaged, or another model made the index.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, model: IndexModel, *, before: State | None = None) -> None:
        self.folder = folder
        self.text = catalogue.read_description()
        self.meta = meta = IndexMeta.from_json(self.text, folder)
        model.check(meta, where=folder)
        if before is not None and before.meta.build != meta.build:
            before = None
        self.files = catalogue.list_files()
        for file in set(self.files) - set(before.files if before else ()):
            check_size(folder, file)
        if meta.faiss is not None and meta.faiss.file not in {file.name for file in self.files}:
            raise CheckpointError(f"{folder}: damaged, its FAISS index is not among its files; build it again")
        self.vectors: Vectors = Vectors.open(
            folder,
            [file.name for file in self.files if file.rows],
            dim=meta.dim,
            dtype=meta.dtype,
            tokens=meta.tokens,
            before=None if before is None else before.vectors,
        )
        if not len(self.vectors) == meta.rows == catalogue.rows:
            raise CheckpointError(
                f"{folder}: damaged, its description says {meta.rows:,} texts, its database has {catalogue.rows:,}, "
                f"and its files have the vectors of {len(self.vectors):,}; build it again"
            )
        self._faiss: FaissSearch | None = None
        loaded = None if before is None else before._faiss
        if loaded is not None and meta.faiss is not None and loaded.meta.file == meta.faiss.file:
            self._faiss = FaissSearch(meta.faiss, self.vectors, index=loaded.index)
        self._allowed: dict[str, Array | None] = {}

    @property
    def faiss(self) -> FaissSearch:
        """The FAISS index, if any, opened on first use: exact searches and changes do not need it.

        Raises:
            ConfigError: faiss is not installed.
            CheckpointError: it is damaged, or was removed by a newer state.
        """
        if self._faiss is None:
            assert self.meta.faiss is not None
            self._faiss = FaissSearch(self.meta.faiss, self.vectors)
        return self._faiss

    def select_allowed(self, catalogue: Catalogue, filter: Filter | None = None) -> Array | None:
        """Caches `Catalogue.select_allowed`, since a state does not change."""
        key = repr(parse_filter(filter))
        if key in (cached := self._allowed):
            return cached[key]
        allowed = catalogue.select_allowed(filter)
        if len(cached) >= _FILTERS:
            cached = self._allowed = {}  # a new one, as other threads may read this one
        cached[key] = allowed
        return allowed

    def search_by_vectors(
        self, catalogue: Catalogue, contexts: Contexts, options: SearchOptions, *, attention: str
    ) -> list[list[Hit]]:
        """The best `top_k` entries of each context, with the FAISS index if there is one, else by scoring all."""
        check_finite(contexts, dim=self.meta.dim)
        options = replace(options, top_k=max(1, options.k(self.meta.entries)))
        allowed = self.select_allowed(catalogue, options.filter)
        if options.exactness == "exact" or self.meta.faiss is None:
            top = scan_vectors(contexts, self.vectors, options, allowed=allowed, attention=attention)
        else:
            top = self.faiss.search(contexts, options, allowed=allowed, attention=attention)
        results = top.scores.tolist(), top.rows.tolist(), top.exactness
        return catalogue.collect_hits(*results, limit=options.top_k, filter=options.filter)

    def search_by_words(
        self,
        catalogue: Catalogue,
        contexts: Contexts,
        turns: Sequence[Sequence[str]],
        options: SearchOptions,
        *,
        attention: str,
    ) -> list[list[Hit]]:
        """The best `top_k` entries by words for each context, scored by vectors. CheckpointError without words."""
        check_finite(contexts, dim=self.meta.dim)
        if catalogue.words is None:
            raise CheckpointError(f"{self.folder}: has no words any more; open it again")
        allowed = self.select_allowed(catalogue, options.filter) if options.filter else None  # words: of living rows
        k = max(1, options.k(self.meta.entries))
        word_scores = [dict(catalogue.words.find(split_query_words(lines), k=k, allowed=allowed)) for lines in turns]
        scores: list[list[float]] = []
        for number, rows in enumerate(word_scores):
            vectors = self.vectors.take(np.array([*rows], dtype=np.int64))
            scores.append(score(contexts.select([number]), vectors, attention=attention)[0].tolist() if rows else [])
        methods: list[Method] = ["words"] * len(word_scores)
        return catalogue.collect_hits(
            scores, [[*rows] for rows in word_scores], methods, limit=k, filter=options.filter, by_words=word_scores
        )
