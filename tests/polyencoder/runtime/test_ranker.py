"""The runtime gives the scores and the order of torch."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest

from polyencoder import CheckpointError, ConfigError, InputError, Selector
from polyencoder import Ranker as TorchRanker
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.export.onnx import export_onnx, quantize_int8
from polyencoder.runtime import Ranker
from polyencoder.runtime import ranker as runtime_ranker
from polyencoder.storage.names import CONTEXT

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
CONVERT_CONTEXTS = [["hello !", "do you like dogs ?"], "hi", ["what do you do for a living ? " * 30, "ok"], "漢字 ?"]


def check_the_same(ranker: TorchRanker, found: Ranker, contexts, candidates) -> None:
    expected = ranker.score(contexts, candidates).numpy()
    scores = found.score(contexts, candidates)
    assert (scores.dtype, scores.shape) == (np.float32, expected.shape)
    assert expected.std() > 1e-2  # or any score would do
    np.testing.assert_allclose(scores, expected, **CLOSE)
    twice = found.score(contexts, [*candidates, *candidates[::-1]])
    assert np.array_equal(twice, twice[:, ::-1])
    for context in contexts:
        ranked, by_torch = found.rank(context, candidates), ranker.rank(context, candidates)
        assert [(one.index, one.text) for one in ranked] == [(one.index, one.text) for one in by_torch]


def test_candidates_with_the_same_tokens_are_read_once(exported, sentences, monkeypatch):
    found, read = Ranker.from_pretrained(exported("bi-mean_first")[1], threads=1), []
    usual = found.encode_candidate_ids
    monkeypatch.setattr(found, "encode_candidate_ids", lambda ids: read.append(len(ids)) or usual(ids))
    scores = found.score(["hi"], [*sentences, *map(str.upper, sentences[::-1])])
    assert read == [len(set(sentences))]
    assert np.array_equal(scores, scores[:, ::-1])


def test_scores_and_order_of_torch(kind, exported, dialogues, sentences):
    ranker, folder = exported(kind)
    check_the_same(ranker, Ranker.from_pretrained(folder, threads=1), dialogues, sentences)


@pytest.mark.parametrize("extra_contexts", [0, 3])
def test_a_convert(make_convert_ranker, sentences, tmp_path, extra_contexts):
    ranker = make_convert_ranker(scale_batches=3, **({"extra_contexts": extra_contexts} if extra_contexts else {}))
    ranker.model.scale.advance()
    export_onnx(ranker, tmp_path)
    check_the_same(ranker, Ranker.from_pretrained(tmp_path), CONVERT_CONTEXTS, sentences)


@pytest.mark.parametrize("kind", ["poly-first_n_last", "cross-mean", "cross-head"])
def test_int8_graphs(kind, exported, sentences, tmp_path):
    """As with torch around them, in equal batches: activations are quantized by the range that they have in one."""
    folder = shutil.copytree(exported(kind)[1], tmp_path / "model")
    quantize_int8(folder)
    around = TorchRanker.from_pretrained(folder, backend="onnx-int8", device="cpu")
    check_the_same(around, Ranker.from_pretrained(folder, precision="int8"), [sentences[:3]], sentences)


def test_vectors_of_torch(separable, exported, dialogues, sentences):
    ranker, folder = exported(separable)
    found = Ranker.from_pretrained(folder)
    np.testing.assert_allclose(found.encode_candidates(sentences), ranker.encode_candidates(sentences), **CLOSE)
    assert found.encode_candidates([]).shape == (0, ranker.model.dim)
    expected, contexts = ranker.encode_contexts(dialogues), found.encode_contexts(dialogues)
    if expected.mask is None:
        assert contexts.mask is None
        np.testing.assert_allclose(contexts.vectors, expected.vectors, **CLOSE)
    else:
        assert contexts.mask.sum(1).tolist() == expected.mask.sum(1).tolist()
        np.testing.assert_allclose(contexts.vectors[contexts.mask], expected.vectors[expected.mask], **CLOSE)
    if not ranker.model.has_one_vector:
        with pytest.raises(InputError, match="several vectors of a context, which `encode_contexts` gives"):
            found.encode(dialogues, kind="context")
        return
    for kind, texts in (("context", dialogues), ("candidate", sentences)):
        for normalize in (False, True):
            wanted = ranker.encode(texts, kind=kind, normalize=normalize)
            np.testing.assert_allclose(found.encode(texts, kind=kind, normalize=normalize), wanted, **CLOSE)


def test_the_tokens_of_a_few_texts_are_in_memory_at_once(exported, dialogues, sentences, monkeypatch):
    """Those of all contexts would be the most of what a process needs."""
    ranker, folder = exported("late")
    found = Ranker.from_pretrained(folder)
    monkeypatch.setattr(runtime_ranker, "_WITH_TOKENS", 3)
    monkeypatch.setattr(runtime_ranker, "_OUTPUTS", 2)
    graph, kept, outputs = found.model.graphs[CONTEXT], [], []
    encode = found.encode_context_ids
    monkeypatch.setattr(found, "encode_context_ids", lambda ids: kept.append(len(ids)) or encode(ids))
    monkeypatch.setitem(found.model.graphs, CONTEXT, lambda ids: outputs.append(len(ids)) or graph(ids))
    np.testing.assert_allclose(found.score(dialogues, sentences), ranker.score(dialogues, sentences), **CLOSE)
    expected = ranker.encode(dialogues, kind="context")
    np.testing.assert_allclose(found.encode(dialogues, kind="context"), expected, **CLOSE)
    assert sum(kept) == sum(outputs) == 2 * len(dialogues)
    assert (max(kept), max(outputs)) == (3, 2)


def test_probabilities(exported, sentences, tmp_path):
    ranker, source = exported("poly-first_n_last")
    folder = shutil.copytree(source, tmp_path / "model")
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=0.2, none=-3.0, fingerprint=fingerprint, precision=0.9, threshold=0.1)
    ranker.calibration.save(folder)
    found = Ranker.from_pretrained(folder)
    try:
        for least in (None, 0.2, "auto"):
            expected = ranker.rank("hi", [*sentences, sentences[0]], min_probability=least)
            ranked = found.rank("hi", [*sentences, sentences[0]], min_probability=least)
            assert [one.index for one in ranked] == [one.index for one in expected]
            assert [one.probability for one in ranked] == pytest.approx([one.probability for one in expected], abs=1e-4)
        assert 0 < len(expected) < len(sentences)
    finally:
        ranker.calibration = None  # other tests share it
    (folder / "calibration.json").write_text((folder / "calibration.json").read_text().replace(fingerprint, "other"))
    with warnings.catch_warnings(record=True) as caught:
        assert Ranker.from_pretrained(folder).calibration is None
    assert "fitted to other weights" in str(caught[0].message)


def test_a_selector_chooses_as_with_torch(exported, sentences):
    ranker, folder = exported("poly-first_n_last")
    found = Selector(Ranker.from_pretrained(folder)).select("hi", sentences, top_k=3)
    expected = Selector(ranker).select("hi", sentences, top_k=3)
    assert [one.option for one in found.chosen] == [one.option for one in expected.chosen]
    assert [one.score for one in found.chosen] == pytest.approx([one.score for one in expected.chosen], abs=1e-4)


def test_int8_graphs_need_a_calibration_of_their_own(exported, sentences, tmp_path):
    ranker, source = exported("bi-mean_first")
    folder = shutil.copytree(source, tmp_path / "model")
    quantize_int8(folder)
    Calibration(temperature=0.2, none=-3.0, fingerprint=model_fingerprint(ranker.model, ranker.text)).save(folder)
    with pytest.warns(UserWarning, match=r"calibration.json: not used, .* with another (--)?backend"):
        found = Ranker.from_pretrained(folder, precision="int8")
    with pytest.raises(ConfigError, match=f"trained since: calibrate {folder} with .* (--)?backend"):
        found.rank("hi", sentences, min_probability=0.5)


def test_what_is_not_calibrated_has_no_probability(exported, sentences):
    with pytest.raises(ConfigError, match="needs a calibrated model, and this one is not calibrated"):
        Ranker.from_pretrained(exported("bi-mean_first")[1]).rank("hi", sentences, min_probability=0.5)


def test_a_folder_without_graphs(make_ranker, tmp_path):
    make_ranker("late").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no onnx.json in it.*write them with `polyencoder export`"):
        Ranker.from_pretrained(tmp_path)


def test_weights_that_were_saved_again(exported, make_ranker, tmp_path):
    folder = shutil.copytree(exported("bi-mean_first")[1], tmp_path / "model")
    make_ranker("bi", seed=5).save_pretrained(folder)
    with pytest.raises(CheckpointError, match="not the weights of these graphs; the model was saved again since"):
        Ranker.from_pretrained(folder)


def test_bad_arguments(exported, sentences, tmp_path):
    folder = exported("cross-mean")[1]
    ranker = Ranker.from_pretrained(folder)
    for call in (lambda: ranker.encode_candidates(sentences), lambda: ranker.encode_contexts(sentences)):
        with pytest.raises(InputError, match="a cross-encoder has no vectors"):
            call()
    with pytest.raises(InputError, match="the list of candidates is empty"):
        ranker.score(["hi"], [])
    with pytest.raises(InputError, match="the list of contexts is empty"):
        ranker.score([], sentences)
    with pytest.raises(InputError, match="candidate 1 is empty"):
        ranker.rank("hi", ["a", " "])
    with pytest.raises(ConfigError, match="precision is 'int4'; it must be one of float32, int8"):
        Ranker.from_pretrained(folder, precision="int4")
    with pytest.raises(CheckpointError, match=r"no scorer.int8.onnx .* `polyencoder export`"):
        Ranker.from_pretrained(folder, precision="int8")
    with pytest.raises(InputError, match="threads is -1"):
        Ranker.from_pretrained(folder, threads=-1)
    bi = Ranker.from_pretrained(exported("bi-mean_first")[1])
    with pytest.raises(ConfigError, match="kind is 'pooled'; it must be one of context, candidate"):
        bi.encode(["hi"], kind="pooled")
    for kind in ("context", "candidate"):
        with pytest.raises(InputError, match=r"no (text|context) to encode"):
            bi.encode([], kind=kind)
    with pytest.raises(CheckpointError, match="no such folder"):
        Ranker.from_pretrained(tmp_path / "nothing")


def test_a_damaged_model_has_no_ranking(exported, sentences, monkeypatch):
    ranker = Ranker.from_pretrained(exported("bi-mean_first")[1])
    monkeypatch.setattr(ranker, "score", lambda *_: np.full((1, 8), np.nan, dtype=np.float32))
    with pytest.raises(InputError, match="the model's scores are nan"):
        ranker.rank("hi", sentences)


def test_the_configuration_is_that_of_the_model(exported):
    ranker, folder = exported("poly-first_n_last")
    assert Ranker.from_pretrained(folder).config.to_json() == ranker.model.config.to_json()
    assert json.loads((folder / "polyencoder.json").read_text())["architecture"] == "poly"
