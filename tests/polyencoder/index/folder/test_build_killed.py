"""A build that was killed and is started again encodes only what is missing; tests/reliability kills it everywhere."""

from __future__ import annotations

import pytest

import polyencoder.index.folder.shards as shards_module
from tests.polyencoder.index.folder.building import Killed, built, killed_at, many

pytestmark = pytest.mark.slow


@pytest.fixture
def make_index(tmp_path, ranker, sentences):
    """() -> the folder of an index."""
    return lambda: built(tmp_path / "index", ranker, candidates=many(sentences))


def test_whole_shards_are_not_encoded_again(monkeypatch, make_index, tmp_path):
    with monkeypatch.context() as patch:
        killed_at(patch, shards_module, "write_vectors", 3, after=True)
        with pytest.raises(Killed):
            make_index()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("vectors-*")}
    assert len({path.name.split(".")[0] for path in kept}) == 3
    make_index()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
