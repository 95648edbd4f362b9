"""Indexes: candidates encoded once and searched many times, in folders, Milvus or PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.index.base import Index
    from polyencoder.index.build_options import IndexOptions
    from polyencoder.index.candidates import candidates_from
    from polyencoder.index.entries import Candidate
    from polyencoder.index.filters import Filter
    from polyencoder.index.folder.build import build_index
    from polyencoder.index.folder.index import FolderIndex
    from polyencoder.index.folder.verify import verify
    from polyencoder.index.hits import Hit
    from polyencoder.index.meta import Fingerprints
    from polyencoder.index.open import open_index
    from polyencoder.index.options import SearchOptions
    from polyencoder.index.precomputed import vectors_from
    from polyencoder.index.searcher import Searcher

__all__ = [
    "Candidate",
    "Filter",
    "Fingerprints",
    "FolderIndex",
    "Hit",
    "Index",
    "IndexOptions",
    "SearchOptions",
    "Searcher",
    "build_index",
    "candidates_from",
    "open_index",
    "vectors_from",
    "verify",
]

_MODULES = {
    "Candidate": "polyencoder.index.entries",
    "Filter": "polyencoder.index.filters",
    "Fingerprints": "polyencoder.index.meta",
    "FolderIndex": "polyencoder.index.folder.index",
    "Hit": "polyencoder.index.hits",
    "Index": "polyencoder.index.base",
    "IndexOptions": "polyencoder.index.build_options",
    "SearchOptions": "polyencoder.index.options",
    "Searcher": "polyencoder.index.searcher",
    "build_index": "polyencoder.index.folder.build",
    "candidates_from": "polyencoder.index.candidates",
    "open_index": "polyencoder.index.open",
    "vectors_from": "polyencoder.index.precomputed",
    "verify": "polyencoder.index.folder.verify",
}

__getattr__, __dir__ = build_lazy_names(__name__, _MODULES)
