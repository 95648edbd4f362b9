"""A Milvus server, of the package `milvus`: it finds what Milvus Lite finds, and a crash loses nothing.

The package is not in requirements.txt: a collection takes ten seconds there, these tests three minutes.
"""

from __future__ import annotations

from itertools import count

import pytest

import polyencoder.index.milvus.collection as collection_module
import polyencoder.index.milvus.index as index_module
from polyencoder.errors import PolyencoderError
from polyencoder.index.entries import Candidate
from polyencoder.index.milvus.index import MilvusIndex
from tests.commands import run_command
from tests.milvus_server import real_milvus

pytest.importorskip("milvus", reason="no Milvus server: pip install --no-deps milvus==2.3.5")
pytestmark = pytest.mark.slow
names = (f"test_{i}" for i in count())


@pytest.fixture(scope="module")
def server():
    with real_milvus() as server:
        yield server


@pytest.fixture
def where(server) -> str:
    return f"{server.address}#{next(names)}"


@pytest.mark.parametrize("kind", ["flat", "auto"])
def test_what_it_finds(where, ranker, contexts, many, assert_best, kind):
    index = MilvusIndex.create(where, ranker, kind=kind)
    index.add(many)
    removed = [f"id {n}" for n in range(0, 90, 3)]
    index.remove(removed)
    index.update([Candidate("id 1", "hello dogs", {"n": 9}), Candidate("id 2", many[2].text, {"n": 9})])
    expected = {candidate.id: candidate for candidate in many if candidate.id not in removed}
    expected |= {"id 1": Candidate("id 1", "hello dogs", {"n": 9}), "id 2": Candidate("id 2", many[2].text, {"n": 9})}
    again = MilvusIndex.open(where, ranker)
    assert len(again) == len(expected)
    candidates = list(expected.values())
    assert_best(again.search(contexts, top_k=9, exactness="exact"), ranker, contexts, candidates, k=9, kinds={"exact"})
    hits = again.search(contexts, top_k=9, exactness="certified")
    assert_best(hits, ranker, contexts, candidates, k=9, kinds={"exact", "certified"})
    approximate = again.search(contexts, top_k=9)
    assert all({hit.id for hit in hits} <= expected.keys() and len(hits) == 9 for hits in approximate)
    for filter in ({"n": 9}, {"n": [1, 2], "even": True}, {"name": '"1\\'}, {"name": None}):
        passing = [candidate for candidate in candidates if _has(candidate, filter)]
        assert again.count(filter) == len(passing) > 0
        hits = again.search(contexts, top_k=4, filter=filter, exactness="certified")
        assert_best(hits, ranker, contexts, passing, k=4, kinds={"exact", "certified"})
    assert f"{len(expected):,}" in run_command("index", "--info", where).output


def _has(candidate: Candidate, filter: dict) -> bool:
    fields = candidate.metadata or {}
    return all(fields.get(key) in (value if isinstance(value, list) else [value]) for key, value in filter.items())


@pytest.mark.parametrize("change", ["add", "update", "remove"])
def test_a_server_that_crashes_in_the_midst_of_a_change(
    server, where, ranker, contexts, many, assert_best, monkeypatch, change
):
    """The change is an error; made again after the restart, it is whole, and all that was there before still is."""
    monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 60)
    with monkeypatch.context() as patch:
        patch.setattr(collection_module, "_ANSWER_SECONDS", 10)
        index = MilvusIndex.create(where, ranker, kind="flat")
    before = many[:200]
    index.add(before)
    new = [candidate._replace(text=f"{candidate.text} again") for candidate in before]
    items = {"add": many, "update": new, "remove": [candidate.id for candidate in before[:150]]}[change]
    after = {"add": many, "update": new, "remove": before[150:]}[change]

    def crashing():
        yield from items[:130]
        server.crash()
        yield from items[130:]

    options = {"missing_ok": True} if change == "remove" else {}
    try:
        with pytest.raises(PolyencoderError, match="Milvus does not answer; is the server still running"):
            getattr(index, change)(crashing(), **options)
        with pytest.raises(PolyencoderError, match="Milvus does not answer|no connection"):
            index.search(contexts, top_k=3)
    finally:
        server.start()
    again = MilvusIndex.open(where, ranker)
    getattr(again, change)(items, **options)
    assert len(again) == len(after)
    assert_best(again.search(contexts, top_k=9, exactness="exact"), ranker, contexts, after, k=9, kinds={"exact"})
    assert index.search(contexts, top_k=1)[0][0].id == again.search(contexts, top_k=1)[0][0].id  # it reconnects
