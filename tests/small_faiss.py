"""FAISS indexes of a few rows: parameters of each kind, and filters that reach FAISS."""

from __future__ import annotations

import pytest

from polyencoder.index.faiss import search

SMALL = {
    "hnsw": {"m": 8},
    "ivf-flat": {"nlist": 4, "nprobe": 2},
    "ivf-pq": {"nlist": 4, "nprobe": 2, "pq_m": 4, "pq_bits": 3},
}


@pytest.fixture(autouse=True, scope="module")
def filters_reach_faiss():
    """Else the few rows of a test that are allowed would all be scanned. Autouse where it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_SCAN_ROWS", 0)
        patch.setattr(search, "_SCAN_SHARE", 0.0)
        yield
