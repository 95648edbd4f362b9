"""Documents in an index: their passages are candidates, and each document is found once, by the best of them."""

from __future__ import annotations

import numpy as np
import pytest

from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation.runs import search_run
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.documents import DOCUMENT, Split
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import open_index

pytestmark = pytest.mark.slow

LONG = [
    {"id": "pets", "text": "i have two dogs . my cat is old . the dogs play all day .", "metadata": {"lang": "en"}},
    {"id": "ski", "text": "i like to ski . there is snow . it is cold in winter ."},
    {"id": "short", "text": "hello ."},
]
SPLIT = {"split": 14, "overlap": 2}


@pytest.fixture(params=["folder", "milvus", "postgres"])
def where(request, make_where) -> str:
    return make_where(request.param)


def documents(index):
    hits = index.search(np.zeros((1, index.meta.dim), np.float32), top_k=100)[0]
    return sorted((hit.metadata[DOCUMENT], hit.id, hit.text) for hit in hits)


def test_changes_are_of_documents_and_another_split_is_refused(ranker, where):
    with ranker.index(LONG, where, **SPLIT) as index:
        first = documents(index)
        assert {document for document, *_ in first} == {"pets", "ski", "short"}
        assert [id_ for document, id_, _ in first if document == "short"] == ["short#1"]
        assert len(first) > 4
        assert index.count({"lang": "en"}) == sum(document == "pets" for document, *_ in first)
        assert index.put(LONG) == 0
        hits = ranker.search("do you ski ?", index, top_k=3)
        assert sorted(hit.metadata[DOCUMENT] for hit in hits) == ["pets", "short", "ski"]
        assert len(ranker.search("do you ski ?", index, top_k=3, group_by=DOCUMENT, group_size=2)) == 3
        assert {*search_run(ranker, index, {"q": "do you ski ?"})["q"]} == {"pets", "ski", "short"}
    with pytest.raises((ConfigError, InputError), match="give another|remove it"):
        ranker.index(LONG, where, split=20)
    with open_index(where, ranker) as index:
        assert index.split == Split(tokens=14, overlap=2)
        index.put([{"id": "ski", "text": "no more snow ."}])
        assert [row for row in documents(index) if row[0] == "ski"] == [("ski", "ski#1", "no more snow .")]
        index.update([{"id": "short", "text": LONG[1]["text"]}])
        assert len([row for row in documents(index) if row[0] == "short"]) > 1
        with pytest.raises(InputError, match="no document has the id 'none'"):
            index.update([{"id": "none", "text": "x"}])
        count = len(index)
        assert index.remove(["short", "pets#1"]) == count - len(index) > 2
        assert {document for document, *_ in documents(index)} == {"pets", "ski"}
        with pytest.raises(InputError, match="no candidate has the id 'short'"):
            index.remove(["short"])
        assert index.remove(["short"], missing_ok=True) == 0
        index.add([{"id": "new", "text": LONG[0]["text"]}])
        assert len([row for row in documents(index) if row[0] == "new"]) > 1


@pytest.mark.parametrize(
    ("records", "options", "error", "says"),
    [
        (LONG, {"split": 1000}, ConfigError, "split is 1000, but the model reads 22 tokens"),
        (LONG, {"split": 10, "overlap": 10}, ConfigError, "overlap is 10; it must be below split"),
        (LONG, {"overlap": 10}, ConfigError, "overlap is read only with split"),
        (LONG, {"split": 0}, ConfigError, "split"),
        ([{"id": "a", "text": "x", "metadata": {"document": "b"}}], {"split": 9}, InputError, "'document'"),
        ([{"id": "a", "text": " "}], {"split": 9}, InputError, "candidate 0: .*its text is empty"),
        ([{"id": "a", "text": "x", "vector": [1.0] * 16}], {"split": 9}, InputError, "candidate 0: has a vector"),
    ],
)
def test_what_cannot_be_split(ranker, tmp_path, records, options, error, says):
    with pytest.raises(error, match=says):
        ranker.index(records, tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()


def test_without_the_model(ranker, tmp_path):
    ranker.index(LONG, tmp_path / "index", **SPLIT)
    index = open_index(tmp_path / "index")
    with pytest.raises(InputError, match="opened without its model"):
        index.add([Candidate("a", "x")])
    assert index.remove(["ski"]) > 0


def test_given_vectors_are_not_split():
    with pytest.raises(ConfigError, match="split is for texts"):
        IndexOptions(split=3).split_for(Fingerprints("made"))


def test_the_last_of_a_documents_texts_counts(ranker, where):
    long, short = LONG[0]["text"], "no more dogs ."
    with ranker.index(LONG, where, **SPLIT) as index:
        index.put([{"id": "pets", "text": "i have a fish . " * 9}, {"id": "pets", "text": short}])
        assert [row for row in documents(index) if row[0] == "pets"] == [("pets", "pets#1", short)]
        with index.changing():
            index.put([{"id": "pets", "text": long}])
            index.put([{"id": "pets", "text": short}])
            index.add([{"id": "new", "text": long}, {"id": "newer", "text": long, "metadata": {"lang": "en"}}])
            index.update([{"id": "new", "text": short}])
            index.remove(["ski"])
            index.add([{"id": "ski", "text": short}])
            index.remove(["ski", "short"])
            assert index.remove_where({DOCUMENT: "newer"}) > 1
        assert documents(index) == [("new", "new#1", short), ("pets", "pets#1", short)]
