"""The summary of an index folder that was never opened for a search."""

from __future__ import annotations

from polyencoder.index.folder.verify import describe_folder


def test_candidates_model_and_vectors(folder):
    lines = describe_folder(folder)
    assert lines[0].endswith("index: 10 candidates")
    assert lines[1].startswith("model: models/mine (poly-encoder, fingerprint ")
    assert lines[-1] == "search: everything is scored (no FAISS index)"
