"""A FAISS index of any vectors, beside their files."""

from __future__ import annotations

import pytest

from polyencoder.index.faiss.file import build_faiss
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.vectors import quantize, write_vectors


@pytest.fixture(scope="module")
def make_search(tmp_path_factory, open_vectors):
    def make(values, *, kind=None, dtype="float32", newer=None, **overrides):
        """Index `values` [n, dim], by default as one list; then add the `newer` rows, which FAISS does not cover."""
        kind, overrides = ("ivf-flat", {"nlist": 1}) if kind is None else (kind, overrides)
        folder = tmp_path_factory.mktemp("index")
        write_vectors(folder, 0, *quantize(values, dtype))
        faiss = build_faiss(open_vectors(folder, dim=values.size(1), dtype=dtype), kind=kind, **overrides)
        if newer is not None and len(newer):
            write_vectors(folder, len(values), *quantize(newer, dtype))
        return FaissSearch(faiss, open_vectors(folder, dim=values.size(1), dtype=dtype))

    return make
