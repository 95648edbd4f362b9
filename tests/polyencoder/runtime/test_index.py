"""Searches of an index folder: those of torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from polyencoder import CheckpointError, ConfigError, InputError
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.export.onnx import quantize_int8
from polyencoder.index import searcher
from polyencoder.index.vector_files import VectorDtype
from polyencoder.runtime import Ranker
from polyencoder.runtime import ranker as runtime_ranker
from polyencoder.search import scan
from polyencoder.storage.names import TOKENIZER, WEIGHTS

pytestmark = pytest.mark.slow

KIND = "poly-first_n_last"


@pytest.fixture
def records(sentences):
    """One text has two entries."""
    texts = [*sentences, *(f"{text} really ?" for text in sentences), sentences[0]]
    return [
        {"id": str(place), "text": text, "metadata": {"part": place % 3} if place else None}
        for place, text in enumerate(texts)
    ]


def same_hits(found, expected) -> None:
    """Equal, save that hits whose scores differ by rounding alone may change places: processors round otherwise."""
    by_id = {hit.id: hit for hit in expected}
    assert {(hit.id, hit.text, str(hit.metadata), hit.found) for hit in found} == {
        (hit.id, hit.text, str(hit.metadata), "exact") for hit in expected
    }
    for hit, there in zip(found, expected, strict=True):
        assert hit.id == there.id or by_id[hit.id].score == pytest.approx(there.score, rel=1e-6)
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], rel=1e-3, abs=1e-3)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps of files are read as Linux shows them")
def test_a_closed_index_has_no_files_mapped(exported, records, tmp_path):
    def mapped() -> bool:
        return str(tmp_path / "index" / "vectors-") in Path("/proc/self/maps").read_text()

    ranker, folder = exported(KIND)
    ranker.index(records, tmp_path / "index").close()
    small = Ranker.from_pretrained(folder)
    index = small.open_index(tmp_path / "index")
    small.search("hi", index)
    assert mapped()
    index.close()
    assert not mapped()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_hits_of_torch(exported, records, sentences, tmp_path, monkeypatch, dtype: VectorDtype):
    monkeypatch.setattr(scan, "_MOST_ROWS", 3)  # several blocks in each of several files
    ranker, folder = exported(KIND)
    index = ranker.index(records, tmp_path / "index", dtype=dtype, shard_size=7)
    index.remove(["3", "4"])
    index.add([{"id": "late", "text": "this one came later .", "metadata": {"part": 1}}])
    small = Ranker.from_pretrained(folder)
    opened = small.open_index(tmp_path / "index")
    for context in (sentences[:2], "hi", [sentences[2].upper()]):
        for settings in ({}, {"top_k": 3}, {"filter": {"part": [0, 1]}, "top_k": 4}, {"keep_turns": True, "top_k": 99}):
            expected = ranker.search(context, index, exactness="exact", **settings)
            same_hits(small.search(context, opened, **settings), expected)
    index.add([sentences[1] + " and this"])  # which a search sees without opening again
    expected = ranker.search("hi", index, top_k=99)
    same_hits(small.search("hi", opened, top_k=99), expected)
    assert small.search("hi", opened, filter={"part": 77}) == []
    opened.close()


def test_probabilities(exported, records, tmp_path, monkeypatch):
    ranker, folder = exported(KIND)
    index, small = ranker.index(records, tmp_path / "index"), Ranker.from_pretrained(folder)
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = small.calibration = Calibration(temperature=0.2, none=-3.0, fingerprint=fingerprint)
    try:
        for settings in ({"top_k": 2}, {"min_probability": 0.1}):
            expected = ranker.search("hi", index, **settings)
            found = small.search("hi", tmp_path / "index", **settings)
            same_hits(found, expected)
            assert [hit.probability for hit in found] == pytest.approx([hit.probability for hit in expected], abs=1e-3)
        opened, asked = small.open_index(tmp_path / "index"), []
        search = opened.search
        monkeypatch.setattr(opened, "search", lambda *given, **settings: asked.append(1) or search(*given, **settings))
        assert len(small.search("hi", opened, top_k=2)) == 2
        assert len(asked) == 1  # for the hits that probabilities need, too
    finally:
        ranker.calibration = None  # other tests share it


@pytest.mark.parametrize("stored", [None, "int8", "float16"])
def test_a_late_interaction_encoder_reranks_as_with_torch(exported, records, sentences, tmp_path, monkeypatch, stored):
    for module in (runtime_ranker, searcher):
        monkeypatch.setattr(module, "OWN_K", 5)  # and others follow
    ranker, folder = exported("late")
    index = ranker.index(records, tmp_path / "index", store_tokens=stored, shard_size=7)
    index.remove(["3", "4"])
    small = Ranker.from_pretrained(folder)
    opened = small.open_index(tmp_path / "index")
    read = []
    monkeypatch.setattr(
        small, "read_candidate_ids", lambda ids: read.append(len(ids)) or Ranker.read_candidate_ids(small, ids)
    )
    for context in (sentences[:2], "hi"):
        for settings in ({"top_k": 99}, {"top_k": 3}, {"filter": {"part": [0, 1]}}):
            found, expected = small.search(context, opened, **settings), ranker.search(context, index, **settings)
            assert [hit.id for hit in found] == [hit.id for hit in expected]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], rel=1e-4, abs=1e-4)
            scores, by_torch = ([hit.rerank_score for hit in hits if hit.rerank_score] for hits in (found, expected))
            assert len(scores) == len(by_torch) >= 3
            assert scores == pytest.approx(by_torch, rel=1e-4, abs=1e-4)
    assert sum(read) == (0 if stored else 6 * 5)
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = small.calibration = Calibration(temperature=0.2, none=-3.0, fingerprint=fingerprint)
    try:
        for settings in ({"top_k": 99}, {"min_probability": 0.1}):
            expected, found = (one.search("hi", tmp_path / "index", **settings) for one in (ranker, small))
            assert [hit.id for hit in found] == [hit.id for hit in expected]
            same = [hit.probability for hit in found if hit.probability is not None]
            assert same == pytest.approx([hit.probability for hit in expected if hit.probability is not None], abs=1e-4)
            assert 0 < len(same) <= 10
    finally:
        ranker.calibration = None  # other tests share it
        opened.close()


def test_an_index_of_another_model(exported, records, tmp_path):
    ranker, source = exported(KIND)
    folder = shutil.copytree(source, tmp_path / "model")
    quantize_int8(folder)
    ranker.index(records, tmp_path / "index")
    with pytest.raises(CheckpointError, match="made by another model, .*another weights or reduction"):
        Ranker.from_pretrained(exported("bi-mean_first")[1]).open_index(tmp_path / "index")
    with pytest.raises(CheckpointError, match="made by the float32 model, and its vectors have another precision"):
        Ranker.from_pretrained(folder, precision="int8").search("hi", tmp_path / "index")
    opened = Ranker.from_pretrained(source).open_index(tmp_path / "index")  # by the model that made it
    with pytest.raises(CheckpointError, match="made by another model, .*another weights or reduction"):
        Ranker.from_pretrained(exported("bi-mean_first")[1]).search("hi", opened)
    with pytest.raises(CheckpointError, match="made by the float32 model, and its vectors have another precision"):
        Ranker.from_pretrained(folder, precision="int8").search("hi", opened)
    assert len(Ranker.from_pretrained(source).search("hi", opened)) == 10  # another ranker of the same model
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        Ranker.from_pretrained(exported("cross-mean")[1]).open_index(tmp_path / "index")


def test_an_index_of_another_tokenizer(exported, records, tmp_path, edit_json):
    """The graphs are the same, but read other tokens than those that the index was made of."""
    ranker, source = exported(KIND)
    folder = shutil.copytree(source, tmp_path / "model")
    (folder / WEIGHTS).unlink(missing_ok=True)
    ranker.index(records, tmp_path / "index")
    assert len(Ranker.from_pretrained(folder).search("hi", tmp_path / "index")) == 10
    vocabulary = json.loads((folder / TOKENIZER).read_text())["model"]
    (one, a), (other, b) = [*vocabulary["vocab"].items()][-2:]
    edit_json(folder / TOKENIZER, model=vocabulary | {"vocab": vocabulary["vocab"] | {one: b, other: a}})
    with pytest.raises(CheckpointError, match="made by another model, .*another tokenizer"):
        Ranker.from_pretrained(folder).search("hi", tmp_path / "index")


def test_bad_arguments(exported, records, tmp_path):
    ranker, folder = exported(KIND)
    index, small = ranker.index(records, tmp_path / "index"), Ranker.from_pretrained(folder)
    with pytest.raises(InputError, match="cannot filter by 'none': no candidate of the index has this metadata field"):
        small.search("hi", tmp_path / "index", filter={"none": 1})
    with pytest.raises(InputError, match="cannot filter by 'part': '1' is a text, and .* have numbers alone"):
        small.search("hi", tmp_path / "index", filter={"part": "1"})
    with pytest.raises(InputError, match="top_k is 0"):
        small.search("hi", tmp_path / "index", top_k=0)
    with pytest.raises(InputError, match="context 0 is empty"):
        small.search(" ", tmp_path / "index")
    with pytest.raises(ConfigError, match="needs a calibrated model"):
        small.search("hi", tmp_path / "index", min_probability=0.5)
    with pytest.raises(CheckpointError, match=r"no index \(no index.sqlite in it\)"):
        small.search("hi", tmp_path / "nothing")
    index.remove([record["id"] for record in records])
    assert small.search("hi", tmp_path / "index") == []
    next((tmp_path / "index").glob("vectors-*.npy")).unlink()
    with pytest.raises(CheckpointError, match="missing: the index is damaged"):
        small.open_index(tmp_path / "index")


def test_an_index_that_is_emptied_after_the_check(exported, records, tmp_path, monkeypatch):
    ranker, folder = exported(KIND)
    index, small = ranker.index(records, tmp_path / "index"), Ranker.from_pretrained(folder)
    opened = small.open_index(tmp_path / "index")
    check = opened.check

    def and_then_empty(*asked) -> None:
        check(*asked)
        monkeypatch.undo()  # a search checks again
        index.remove([record["id"] for record in records])
        index.compact()

    monkeypatch.setattr(opened, "check", and_then_empty)
    assert small.search("hi", opened) == []
