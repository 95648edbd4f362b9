"""Searches by a FAISS index in numpy: rows, scores and exactness are those of torch."""

from __future__ import annotations

import pytest

from polyencoder import CheckpointError, ConfigError
from polyencoder.index.faiss import library
from polyencoder.runtime import Ranker
from tests.small_faiss import filters_reach_faiss  # noqa: F401 the fixture works where it is imported

pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def records(sentences) -> list[dict]:
    texts = [*sentences, *(" ".join(reversed(text.split())) for text in sentences), sentences[0]]
    return [{"id": str(place), "text": text, "metadata": {"part": place % 3}} for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("kind", "faiss"),
    [
        ("bi-mean_first", "ivf-flat,nlist=1"),
        ("poly-first_n_last", "ivf-flat,nlist=1"),
        ("poly-first_n_last", "hnsw,m=8"),
        ("poly-first_n_last", "ivf-flat,nlist=4,nprobe=2"),
    ],
)
def test_hits_of_torch(exported, records, sentences, tmp_path, kind, faiss):
    ranker, folder = exported(kind)
    index = ranker.index(records, tmp_path / "index", faiss=faiss, shard_size=7)
    index.remove(["3", "4"])
    small = Ranker.from_pretrained(folder)
    opened = small.open_index(tmp_path / "index")
    seen = set()
    for added in ([], ["this one came later ."]):
        index.add(added)  # what FAISS does not cover; an opened index sees it
        for context in (sentences[:2], "hi", [sentences[2].upper()]):
            for options in (
                {},
                {"top_k": 3, "exactness": "approximate"},
                {"top_k": 3, "exactness": "certified"},
                {"filter": {"part": [0, 1]}, "top_k": 4, "list_length": 5},
                {"keep_turns": True, "top_k": 99, "exactness": "exact"},
                {"tolerance": 0, "top_k": 2, "effort": 4},
            ):
                expected, found = ranker.search(context, index, **options), small.search(context, opened, **options)
                assert [hit[:2] + hit[3:5] for hit in found] == [hit[:2] + hit[3:5] for hit in expected]
                assert [hit.score for hit in found] == pytest.approx(
                    [hit.score for hit in expected], rel=1e-4, abs=1e-4
                )
                seen |= {hit.found for hit in found}
    assert seen == ({"exact", "certified", "approximate"} if "flat" in faiss else {"exact", "approximate"})
    opened.close()


def test_another_faiss_index_is_opened(exported, records, tmp_path):
    """And the open one stays, while it is that of the newest state."""
    ranker, folder = exported("bi-mean_first")
    index, small = ranker.index(records, tmp_path / "index", faiss="hnsw,m=8"), Ranker.from_pretrained(folder)
    opened = small.open_index(tmp_path / "index")

    def library_index():
        small.search("hi", opened)
        return opened.state.faiss.lists.index

    before = library_index()
    index.add(["this one came later ."])
    assert library_index() is before
    index.build_faiss("ivf-flat", nlist=2)
    assert library_index() is not before
    index.compact()  # drops it
    assert {hit.found for hit in small.search("hi", opened)} == {"exact"}
    assert opened.state._faiss is None  # nor is its memory kept


def test_options_that_do_not_fit(exported, records, tmp_path):
    ranker, folder = exported("bi-mean_first")
    ranker.index(records, tmp_path / "lists", faiss="ivf-flat")
    ranker.index(records, tmp_path / "none")
    small = Ranker.from_pretrained(folder)
    with pytest.raises(ConfigError, match="list_length given, but it has no FAISS index"):
        small.search("hi", tmp_path / "none", list_length=9)
    with pytest.raises(ConfigError, match="exactness is 'sure'"):
        small.search("hi", tmp_path / "lists", exactness="sure")


def test_without_faiss_only_exact_searches(exported, records, tmp_path, monkeypatch):
    ranker, folder = exported("bi-mean_first")
    ranker.index(records, tmp_path / "index", faiss="hnsw,m=8")
    small = Ranker.from_pretrained(folder)
    with monkeypatch.context() as patch:

        def missing(*_, **__):
            raise ConfigError("the package `faiss` is not installed")

        patch.setattr(library, "require", missing)
        opened = small.open_index(tmp_path / "index")
        with pytest.raises(ConfigError, match="the package `faiss` is not installed"):
            small.search("hi", opened)
        assert {hit.found for hit in small.search("hi", opened, exactness="exact")} == {"exact"}


def test_a_damaged_faiss_index(exported, records, tmp_path):
    ranker, folder = exported("bi-mean_first")
    ranker.index(records, tmp_path / "index", faiss="hnsw,m=8")
    file = next((tmp_path / "index").glob("faiss-*.index"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="was made from other vectors"):
        Ranker.from_pretrained(folder).search("hi", tmp_path / "index")
    file.write_bytes(data[:60])
    with pytest.raises(CheckpointError):
        Ranker.from_pretrained(folder).search("hi", tmp_path / "index")
