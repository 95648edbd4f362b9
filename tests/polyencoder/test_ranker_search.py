"""`Ranker.index` and `Ranker.search`: the way from texts to hits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder import CheckpointError, ConfigError, InputError
from polyencoder.index import Candidate
from polyencoder.index.searcher import Searcher
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXT = ["do you ski ?", "no , i have two dogs ."]


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_searching_is_ranking(make_ranker, sentences, architecture):
    ranker = make_ranker(architecture)
    index = ranker.index(sentences)
    ranked = ranker.rank(CONTEXT, sentences)
    for top_k in (1, 3, len(sentences)):
        hits = ranker.search(CONTEXT, index, top_k=top_k)
        assert [hit.text for hit in hits] == [hit.text for hit in ranked[:top_k]]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in ranked[:top_k]], abs=1e-3)
        assert {hit.found for hit in hits} == {"exact"}
    assert len(ranker.search("hello", index)) == len(sentences)  # which are fewer than the default
    many = ranker.search_many([CONTEXT, "hello"], index, top_k=2)
    alone = [ranker.search(context, index, top_k=2) for context in (CONTEXT, "hello")]
    assert [[hit.id for hit in hits] for hits in many] == [[hit.id for hit in hits] for hits in alone]


def test_records_and_filters(ranker, sentences):
    index = ranker.index(Candidate(f"id{i}", text, {"even": i % 2 == 0}) for i, text in enumerate(sentences))
    hits = ranker.search("hello", index, filter={"even": True})
    assert {hit.id for hit in hits} == {"id0", "id2", "id4", "id6"}


def test_an_index_by_its_path(ranker, make_ranker, sentences, tmp_path):
    index = ranker.index(sentences, tmp_path / "index", dtype="int8", shard_size=3)
    assert index.meta.dtype == "int8"
    by_path = ranker.search("hello", str(tmp_path / "index"), top_k=3)
    assert by_path == ranker.search("hello", index, top_k=3) == ranker.search("hello", tmp_path / "index", top_k=3)
    assert ranker.index(sentences, tmp_path / "index", dtype="int8", shard_size=3).search(
        ranker.encode_contexts(["hello"]), top_k=3
    ) == [by_path]
    with pytest.raises(CheckpointError, match="made by another model"):
        make_ranker("poly", seed=1).search("hello", tmp_path / "index")
    with pytest.raises(InputError, match="has an index of other candidates"):
        ranker.index(sentences[1:], tmp_path / "index", dtype="int8", shard_size=3)


@pytest.mark.parametrize(("top_k", "rerank_k"), [(2, 4), (4, 2), (8, 8), (3, 100)])
def test_re_ranking(ranker, make_ranker, sentences, top_k, rerank_k):
    cross = make_ranker("cross")
    index = ranker.index(sentences)
    first = [hit.text for hit in ranker.search(CONTEXT, index, top_k=8)]
    best = [hit.text for hit in cross.rank(CONTEXT, first[:rerank_k])]
    hits = ranker.search(CONTEXT, index, top_k=top_k, rerank=cross, rerank_k=rerank_k)
    assert [hit.text for hit in hits] == [*best, *first[rerank_k:]][:top_k]


class TestTurnsOfTheContext:
    """Candidates that are turns of the context: the first would answer each context with itself."""

    TURNS = ("Do you ski ?", "no ,  i have two dogs .", "you are welcome")

    @pytest.fixture
    def index(self, ranker, sentences):
        gaps = [" " * (1 + i % 6) for i in range(30)]  # no two have the same tokens: rounding would order these
        texts = [f"DO{gap}YOU{' ' * (1 + i // 6)}SKI ?" for i, gap in enumerate(gaps)]
        again = [Candidate(f"twin {i}", text, {"said": True}) for i, text in enumerate(texts)]
        fresh = [Candidate(str(i), text, {"said": False}) for i, text in enumerate(sentences)]
        turns = [Candidate(f"said {i}", text, {"said": True}) for i, text in enumerate(self.TURNS)]
        return ranker.index([*again, *fresh, *turns])

    @mostly_long("exactness", ["exact", "certified", None], quick=2)
    @pytest.mark.parametrize("top_k", [1, 50])
    def test_are_left_out_and_counted(self, ranker, index, exactness, top_k):
        pytest.importorskip("faiss")
        index.build_faiss("ivf-flat", nlist=1)
        contexts = [["do you ski ?\nNO , i have two dogs ."], "thank you", ["  ", "You  are WELCOME"]]
        searcher = Searcher(ranker, index, top_k=top_k, exactness=exactness)
        everything = ranker.search_many(contexts, index, top_k=len(index), exactness="exact", keep_turns=True)
        repeated = [{f"twin {i}" for i in range(30)} | {"said 0", "said 1"}, set(), {"said 2"}]
        expected = [[hit for hit in hits if hit.id not in out] for hits, out in zip(everything, repeated, strict=True)]
        results = searcher(contexts)
        assert [[hit.id for hit in hits] for hits in results] == [[hit.id for hit in hits[:top_k]] for hits in expected]
        better = [
            sum(hit.id in out for hit in hits[: hits.index(new[:top_k][-1])])
            for hits, new, out in zip(everything, expected, repeated, strict=True)
        ]
        assert searcher.left_out == sum(better)
        assert ranker.search_many(contexts, index, top_k=top_k, exactness=exactness) == results
        if exactness:
            assert {hit.found for hits in results for hit in hits} <= {"exact", exactness}

    def test_of_several_lines(self, ranker):
        letter = "Dear customer ,\n\nyour parcel is late ."
        index = ranker.index([letter, "hello"])
        for context in (letter, ["hi !", letter.upper(), "thank you"], letter.replace("\n", " ")):
            assert [hit.text for hit in ranker.search(context, index)] == ["hello"]

    def test_among_those_of_a_filter(self, ranker, index):
        assert ranker.search(self.TURNS, index, filter={"said": True}) == []
        assert len(ranker.search(self.TURNS, index, filter={"said": False}, top_k=40)) == 8

    def test_are_not_read_again(self, ranker, index, make_ranker):
        hits = ranker.search(self.TURNS, index, top_k=5, rerank=make_ranker("cross"), rerank_k=4)
        assert all(hit.metadata == {"said": False} for hit in hits)
        assert [hit.rerank_score is None for hit in hits] == [False] * 4 + [True]


def test_errors(ranker, make_ranker, sentences, tmp_path):
    index = ranker.index(sentences)
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        make_ranker("cross").index(sentences)
    with pytest.raises(InputError, match="candidates is one text"):
        ranker.index("hello")
    with pytest.raises(InputError, match="contexts is one text"):
        ranker.search_many("hello", index)
    with pytest.raises(InputError, match="context 0 is empty"):
        ranker.search([" "], index)
    with pytest.raises(InputError, match="a poly-encoder cannot re-rank"):
        ranker.search("hello", index, rerank=ranker)
    with pytest.raises(ConfigError, match="rerank_k is read only with rerank"):
        ranker.search("hello", index, rerank_k=5)
    with pytest.raises(CheckpointError, match="no index"):
        ranker.search("hello", tmp_path / "nowhere")


def test_an_emptied_index_finds_nothing(ranker, tmp_path):
    with ranker.index([RECORD], tmp_path / "index", words=True) as index:
        index.remove(["x"])
        for options in ({}, {"filter": {"lang": "en"}}, {"group_by": "lang"}, {"hybrid": True}, {"diversity": 0.3}):
            assert ranker.search("hello", index, **options) == []
            (hits,) = index.search(ranker.encode_contexts([["hello"]]), texts=[["hello"]], **options)
            assert hits == []


def test_numbers_are_ids_everywhere(ranker, tmp_path):
    with ranker.index([{"id": 1, "text": "one"}, Candidate(2, "two")], tmp_path / "index") as index:
        index.add([{"id": np.int64(3), "text": "three"}])
        index.update([Candidate(2, "zwei")])
        index.put([{"id": 1, "text": "eins"}])
        assert index.get_texts(["1", "2", "3"]) == {"1": "eins", "2": "zwei", "3": "three"}
        assert index.remove([1, np.int64(2), "3"]) == 3
        with pytest.raises(InputError, match="id 0"):
            index.remove([True])


RECORD = {"id": "x", "text": "hello there", "metadata": {"n": 1}}


@pytest.mark.parametrize("where", ["folder", "milvus:{}/records.db"])
def test_records_are_texts_dictionaries_and_candidates(ranker, tmp_path, where):
    if where.startswith("milvus"):
        pytest.importorskip("milvus_lite")
    index = ranker.index([RECORD, "a text", {"text": "another"}], where.format(tmp_path) if ":" in where else None)
    index.add(["one more", {"id": 5, "text": "a number for an id"}, Candidate("y", "as before")])
    index.update([{"id": "5", "text": "changed"}])
    index.put(iter([{"id": "y", "text": "put"}, RECORD]))
    hits = ranker.search("hi", index, keep_turns=True)
    assert {hit.text for hit in hits} == {"hello there", "a text", "another", "one more", "changed", "put"}
    assert {hit.id: hit.metadata for hit in hits}["x"] == {"n": 1}

    before = len(index)
    for call, records, message in [
        ("remove", "12", "ids is one text; give a list of ids"),
        ("remove", 3, r"ids is 3 \(int\); it must be|ids is 3"),
        ("remove", [3.5], r"id 0 is 3.5 \(float\); it must be a text"),
        ("add", "text", "candidates is one text; give a list of texts or of records"),
        ("add", RECORD, "candidates is {'id': 'x'.*give a list"),
        ("add", Candidate("z", "text"), "candidates is one record; give a list"),
        ("add", [1, 2], "candidate 0 is 1; it must be a text, or a dict"),
        ("put", [{"id": "x"}], "candidate 0 is {'id': 'x'}; it has no `text`"),
        ("put", [{"text": "x", "lang": "en"}], "candidate 0 has 'lang' beside `text`, `id` and `metadata`"),
        ("put", [{"text": 3}], "candidate 0: .*its text is 3"),
        ("add", [{"text": "x", "metadata": 3}], "candidate 0: .*its metadata is 3"),
        ("add", [{"text": "x", "id": 2.5}], "candidate 0: .*its id is 2.5"),
        ("update", ["text"], "a record: has no id"),
        ("update", "text", "candidates is one text"),
        ("update", None, "candidates is None"),
    ]:
        with pytest.raises(InputError, match=f"^{message}|: {message}"):
            getattr(index, call)(records)
    assert len(index) == before


def test_what_is_no_list_is_refused(ranker, sentences):
    pytest.importorskip("faiss")
    index = ranker.index(sentences, faiss="ivf-flat")
    for contexts in ("hello", {"a": 1}, 3):
        with pytest.raises(InputError, match="^contexts is "):
            index.tune(recall=0.9, contexts=contexts)
        with pytest.raises(InputError, match="^contexts is "):
            ranker.index(sentences, faiss="ivf-flat", recall=0.9, contexts=contexts)
    for records in ([1, 2], 5, [None]):
        with pytest.raises(InputError, match="^candidate"):
            ranker.index(records)
    with pytest.raises(InputError, match=r"call `rank\(context, texts\)`"):
        ranker.search("hello", sentences)


def test_milvus_is_an_address_like_any_other(ranker, sentences, tmp_path):
    pytest.importorskip("milvus_lite")
    where = f"milvus:{tmp_path}/candidates.db"
    ranked = ranker.rank(CONTEXT, sentences, top_k=3)
    for index in (ranker.index(sentences, where), where):
        hits = ranker.search(CONTEXT, index, top_k=3)
        assert [hit.text for hit in hits] == [hit.text for hit in ranked]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in ranked], abs=1e-3)
    with pytest.raises(InputError, match="the input is empty"):
        ranker.index([], f"milvus:{tmp_path}/empty.db")
    assert not (tmp_path / "empty.db").exists()


def test_the_kind_of_a_milvus_index(ranker, sentences, tmp_path):
    pytest.importorskip("milvus_lite")
    where = f"milvus:{tmp_path}/candidates.db"
    with pytest.raises(ConfigError, match="milvus is 'hnsw'; it must be one of auto, flat"):
        ranker.index(sentences, where, milvus="hnsw")
    assert not (tmp_path / "candidates.db").exists()
    index = ranker.index(sentences, where, milvus="flat")
    hits = ranker.search(CONTEXT, index, top_k=1, exactness="certified")
    assert {hit.found for hit in hits} <= {"certified", "exact"}
    assert index.collection.is_flat


@pytest.mark.parametrize("where", ["folder", "milvus:{}/nan.db"])
def test_vectors_that_are_not_finite(tmp_path, make_ranker, sentences, where):
    """One token has them, so that a few texts do: errors name these in indexing and in searches."""
    if where.startswith("milvus"):
        pytest.importorskip("milvus_lite")
    ranker = make_ranker("bi")
    where = where.format(tmp_path) if ":" in where else str(tmp_path / where)
    index = ranker.index(sentences, where)
    (token,) = ranker.text.tokenizer.encode("q", add_special_tokens=False).ids[-1:]
    for tower in (ranker.model.context_tower, ranker.model.candidate_tower):
        tower.model.get_input_embeddings().weight.data[token] = torch.nan
    with pytest.raises(InputError, match="the vectors of context 1 are not finite"):
        index.search(ranker.encode_contexts([["hello"], ["a q"]]), top_k=3)
    with pytest.raises(InputError, match="vectors of the candidate 'a q' that are not finite"):
        index.add([Candidate("fine", "fine"), Candidate("x", "a q")])
    assert len(index) == len(sentences)
    with pytest.raises(InputError, match="vectors of the candidate 'a q' that are not finite"):
        ranker.index(["fine", "a q"], f"{where}#b" if ":" in where else tmp_path / "b")
