"""Indexes and searches with ONNX graphs: those of torch; and changes, against a dictionary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from polyencoder import CheckpointError, InputError, Ranker
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.export.onnx import quantize_int8
from polyencoder.index import searcher
from polyencoder.index.open import open_index
from polyencoder.index.vectors import VectorDtype
from polyencoder.storage.names import TOKENIZER, WEIGHTS
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

KIND = "poly-first_n_last"


@pytest.fixture
def records(sentences):
    """One text has two entries."""
    texts = [*sentences, *(f"{text} really ?" for text in sentences), sentences[0]]
    return [{"id": str(i), "text": text, "metadata": {"part": i % 3} if i else None} for i, text in enumerate(texts)]


def same_hits(hits, expected, scores=None) -> None:
    """Equal, save that hits whose scores differ by rounding alone may change places: processors round otherwise.

    `scores` are torch's by id, also of candidates that are no hits: the last one may change places with one of them.
    """
    by_id = {hit.id: hit for hit in expected}
    scores = scores or {hit.id: hit.score for hit in expected}
    assert len({hit.id for hit in hits}) == len(hits)
    for hit, reference in zip(hits, expected, strict=True):
        same = by_id.get(hit.id, hit)
        assert (hit.text, hit.metadata, hit.found) == (same.text, same.metadata, "exact")
        assert hit.id == reference.id or scores[hit.id] == pytest.approx(reference.score, rel=1e-6)
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], rel=1e-5, abs=1e-5)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps of files are read as Linux shows them")
def test_a_closed_index_has_no_files_mapped(exported, records, tmp_path):
    def mapped() -> bool:
        return str(tmp_path / "index" / "vectors-") in Path("/proc/self/maps").read_text()

    ranker, folder = exported(KIND)
    ranker.index(records, tmp_path / "index").close()
    small = Ranker.from_pretrained(folder, backend="onnx")
    index = open_index(tmp_path / "index", small)
    small.search("hi", index)
    assert mapped()
    index.close()
    assert not mapped()


@mostly_long("dtype", ["float32", "float16", "bfloat16", "int8"], quick=1)
def test_hits_of_torch(exported, records, sentences, tmp_path, dtype: VectorDtype):
    ranker, folder = exported(KIND)
    index = ranker.index(records, tmp_path / "index", dtype=dtype, shard_size=7)
    index.remove(["3", "4"])
    index.add([{"id": "late", "text": "this one came later .", "metadata": {"part": 1}}])
    small = Ranker.from_pretrained(folder, backend="onnx")
    opened = open_index(tmp_path / "index", small)
    for context in (sentences[:2], "hi", [sentences[2].upper()]):
        scores = {hit.id: hit.score for hit in ranker.search(context, index, top_k=99, keep_turns=True)}
        for settings in ({}, {"top_k": 3}, {"filter": {"part": [0, 1]}, "top_k": 4}, {"keep_turns": True, "top_k": 99}):
            expected = ranker.search(context, index, exactness="exact", **settings)
            same_hits(small.search(context, opened, **settings), expected, scores)
    index.add([sentences[1] + " and this"])  # which a search sees without opening again
    expected = ranker.search("hi", index, top_k=99)
    same_hits(small.search("hi", opened, top_k=99), expected)
    assert small.search("hi", opened, filter={"part": 77}) == []
    opened.close()


def test_probabilities(exported, records, tmp_path, monkeypatch):
    ranker, folder = exported(KIND)
    index, small = ranker.index(records, tmp_path / "index"), Ranker.from_pretrained(folder, backend="onnx")
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = small.calibration = Calibration(temperature=0.2, none=-3.0, fingerprint=fingerprint)
    try:
        for settings in ({"top_k": 2}, {"min_probability": 0.1}):
            expected = ranker.search("hi", index, **settings)
            hits = small.search("hi", tmp_path / "index", **settings)
            same_hits(hits, expected)
            assert [hit.probability for hit in hits] == pytest.approx([hit.probability for hit in expected], abs=1e-5)
        opened, calls = open_index(tmp_path / "index", small), []
        search = opened.search
        monkeypatch.setattr(opened, "search", lambda *args, **settings: calls.append(1) or search(*args, **settings))
        assert len(small.search("hi", opened, top_k=2)) == 2
        assert len(calls) == 1  # for the hits that probabilities need, too
    finally:
        ranker.calibration = None  # other tests share it


@pytest.mark.parametrize("stored", [None, "int8", "float16"])
def test_a_late_interaction_encoder_reranks_as_with_torch(exported, records, sentences, tmp_path, monkeypatch, stored):
    monkeypatch.setattr(searcher, "LATE_RERANK_K", 5)  # and others follow
    ranker, folder = exported("late")
    index = ranker.index(records, tmp_path / "index", store_tokens=stored, shard_size=7)
    index.remove(["3", "4"])
    small = Ranker.from_pretrained(folder, backend="onnx")
    opened = open_index(tmp_path / "index", small)
    read = []
    encoder = small.encoder
    usual = encoder.read_candidates
    monkeypatch.setattr(encoder, "read_candidates", lambda ids, **how: read.append(len(ids)) or usual(ids, **how))
    for context in (sentences[:2], "hi"):
        for settings in ({"top_k": 99}, {"top_k": 3}, {"filter": {"part": [0, 1]}}):
            actual, expected = small.search(context, opened, **settings), ranker.search(context, index, **settings)
            assert [hit.id for hit in actual] == [hit.id for hit in expected]
            assert [hit.score for hit in actual] == pytest.approx([hit.score for hit in expected], rel=1e-5, abs=1e-5)
            scores, by_torch = ([hit.rerank_score for hit in hits if hit.rerank_score] for hits in (actual, expected))
            assert len(scores) == len(by_torch) >= 3
            assert scores == pytest.approx(by_torch, rel=1e-5, abs=1e-5)
    assert (sum(read) == 0) == bool(stored)
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = small.calibration = Calibration(temperature=0.2, none=-3.0, fingerprint=fingerprint)
    try:
        for settings in ({"top_k": 99}, {"min_probability": 0.1}):
            expected, actual = (engine.search("hi", tmp_path / "index", **settings) for engine in (ranker, small))
            assert [hit.id for hit in actual] == [hit.id for hit in expected]
            same = [hit.probability for hit in actual if hit.probability is not None]
            assert same == pytest.approx([hit.probability for hit in expected if hit.probability is not None], abs=1e-5)
            assert 0 < len(same) <= 10
    finally:
        ranker.calibration = None  # other tests share it
        opened.close()


def test_token_vectors_of_int8_graphs_are_others(exported, tmp_path):
    folder = shutil.copytree(exported("late")[1], tmp_path / "model")
    quantize_int8(folder)
    plain, small = (Ranker.from_pretrained(folder, backend=backend).model for backend in ("onnx", "onnx-int8"))
    assert None is not plain.token_fingerprint != small.token_fingerprint is not None


def test_an_index_of_another_model(exported, records, tmp_path):
    ranker, source = exported(KIND)
    folder = shutil.copytree(source, tmp_path / "model")
    quantize_int8(folder)
    ranker.index(records, tmp_path / "index")
    with pytest.raises(CheckpointError, match="made by another model.*another weights or reduction"):
        open_index(tmp_path / "index", Ranker.from_pretrained(exported("bi-mean_first")[1], backend="onnx"))
    with pytest.raises(CheckpointError, match="made by the float32 model, and its vectors have another precision"):
        Ranker.from_pretrained(folder, backend="onnx-int8").search("hi", tmp_path / "index")
    opened = open_index(tmp_path / "index", Ranker.from_pretrained(source, backend="onnx"))  # by the model that made it
    with pytest.raises(CheckpointError, match="made by another model.*another weights or reduction"):
        Ranker.from_pretrained(exported("bi-mean_first")[1], backend="onnx").search("hi", opened)
    with pytest.raises(CheckpointError, match="made by the float32 model, and its vectors have another precision"):
        Ranker.from_pretrained(folder, backend="onnx-int8").search("hi", opened)
    same = Ranker.from_pretrained(source, backend="onnx")  # another ranker of the same model
    assert len(same.search("hi", opened)) == 10
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        open_index(tmp_path / "index", Ranker.from_pretrained(exported("cross-mean")[1], backend="onnx"))


def test_an_index_of_another_tokenizer(exported, records, tmp_path, edit_json):
    """The graphs are the same, but read other tokens than those that the index was made of."""
    ranker, source = exported(KIND)
    folder = shutil.copytree(source, tmp_path / "model")
    (folder / WEIGHTS).unlink(missing_ok=True)
    ranker.index(records, tmp_path / "index")
    assert len(Ranker.from_pretrained(folder, backend="onnx").search("hi", tmp_path / "index")) == 10
    vocabulary = json.loads((folder / TOKENIZER).read_text())["model"]
    (first, a), (second, b) = [*vocabulary["vocab"].items()][-2:]
    edit_json(folder / TOKENIZER, model=vocabulary | {"vocab": vocabulary["vocab"] | {first: b, second: a}})
    with pytest.raises(CheckpointError, match="made by another model.*another tokenizer"):
        Ranker.from_pretrained(folder, backend="onnx").search("hi", tmp_path / "index")


@mostly_long(
    ("kind", "faiss"),
    [
        (KIND, "ivf-flat,nlist=1"),
        ("bi-mean_first", "hnsw,m=8"),
        (KIND, "hnsw,m=8"),
        (KIND, "ivf-flat,nlist=4,nprobe=2"),
    ],
    quick=2,
)
def test_hits_by_faiss(exported, records, sentences, tmp_path, kind, faiss):
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")
    ranker, folder = exported(kind)
    index, seen = ranker.index(records, tmp_path / "index", faiss=faiss, shard_size=7), set()
    small = Ranker.from_pretrained(folder, backend="onnx")
    opened = open_index(tmp_path / "index", small)
    for added in ([], ["this one came later ."]):
        opened.add(added)  # what FAISS does not cover; an index that is open sees it
        for context in (sentences[:2], "hi"):
            for options in ({}, {"top_k": 3, "exactness": "certified"}, {"filter": {"part": [0, 1]}, "top_k": 4}):
                expected, actual = ranker.search(context, index, **options), small.search(context, opened, **options)
                assert [hit[:2] + hit[3:5] for hit in actual] == [hit[:2] + hit[3:5] for hit in expected]
                scores = [hit.score for hit in expected]
                assert [hit.score for hit in actual] == pytest.approx(scores, rel=1e-5, abs=1e-5)
                seen |= {hit.found for hit in actual}
    assert seen >= {"certified" if "flat" in faiss else "approximate"}
    opened.close()


@pytest.mark.parametrize("kind", ["bi-mean_first", "late"])
@hypothesis.settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changes_against_a_dictionary(exported, sentences, tmp_path_factory, kind, data):
    """The hits of an index after any changes are those of one that is built of what the dictionary has."""
    ranker = Ranker.from_pretrained(exported(kind)[1], backend="onnx", threads=1)
    folder, expected = tmp_path_factory.mktemp("changed"), {"0": sentences[0]}
    ids, texts = st.sampled_from("01234"), st.sampled_from(sentences)
    with ranker.index([{"id": "0", "text": sentences[0]}], folder / "index", shard_size=3) as index:
        for _ in range(data.draw(st.integers(1, 5))):
            how = data.draw(st.sampled_from(["put", "put", "remove", "compact"]))
            if how == "put":
                new = data.draw(st.dictionaries(ids, texts, max_size=3))
                index.put([{"id": id_, "text": text} for id_, text in new.items()])
                expected |= new
            elif how == "remove":
                index.remove([removed := data.draw(ids)], missing_ok=True)
                expected.pop(removed, None)
            else:
                index.compact()
        hits = ranker.search("hi", index, top_k=9)
        assert {hit.id: hit.text for hit in hits} == expected
        scores = ranker.score(["hi"], [hit.text for hit in hits])[0].tolist() if hits else []
        read = [hit.score if hit.rerank_score is None else hit.rerank_score for hit in hits]
        assert read == pytest.approx(scores, rel=1e-5, abs=1e-5)
