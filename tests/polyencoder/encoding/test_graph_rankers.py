"""Rankers of ONNX graphs: what torch gives, and what is wrong with a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from polyencoder import CheckpointError, ConfigError, InputError, Ranker, Selector
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint, compute_model_fingerprint
from polyencoder.encoding.graphs import GraphEncoder
from polyencoder.export.card import write_model_card
from polyencoder.export.onnx import quantize_int8
from polyencoder.storage.names import CONFIG, CONTEXT
from tests.forked import forgetting
from tests.polyencoder.calibration.test_probability import promise

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def folder(exported, tmp_path):
    """A folder of graphs that a test may spoil."""
    return shutil.copytree(exported("bi")[1], tmp_path / "model")


def test_a_ranker_of_graphs_is_that_of_torch(kind, exported, dialogues, sentences):
    """What it says of itself, its scores, its ranking, and its vectors if it has any."""
    ranker, folder = exported(kind)
    graphs = Ranker.from_pretrained(folder, backend="onnx", device="cpu")
    names = ["title", "has_vectors", "has_one_vector", "reads_pairs", "has_foreign_candidates", "context_vector"]
    names += ["token_dim", "token_fingerprint", *(["dim"] if ranker.model.has_vectors else [])]
    for name in names:
        assert getattr(graphs.model, name) == getattr(ranker.model, name), name
    expected, actual = (engine.score(dialogues, sentences) for engine in (ranker, graphs))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert expected.std() > 1e-2  # or any score would do
    np.testing.assert_allclose(actual, expected, **CLOSE)
    expected, actual = (engine.rank(sentences[:2], sentences[2:], top_k=3) for engine in (ranker, graphs))
    assert [(hit.index, hit.text) for hit in actual] == [(hit.index, hit.text) for hit in expected]
    assert [hit.score for hit in actual] == pytest.approx([hit.score for hit in expected], rel=1e-5, abs=1e-5)
    if not ranker.model.has_vectors:
        return
    expected, actual = (engine.encode_contexts(dialogues) for engine in (ranker, graphs))
    assert (actual.dim, actual.vectors.dtype) == (expected.dim, np.float32)
    if expected.mask is None:
        assert actual.mask is None
        np.testing.assert_allclose(actual.vectors, expected.vectors, **CLOSE)
    else:
        assert actual.mask.sum(1).tolist() == expected.mask.sum(1).tolist()
        assert actual.n_codes <= expected.n_codes  # a scan multiplies masked ones, too
        np.testing.assert_allclose(actual.vectors[actual.mask], expected.vectors[expected.mask], **CLOSE)
    candidates = graphs.encode_candidates(sentences, batch_size=3)
    np.testing.assert_allclose(candidates, ranker.encode_candidates(sentences), **CLOSE)
    assert graphs.encode_candidates([]).shape == (0, graphs.model.dim) == (0, ranker.model.dim)


def test_a_configuration_that_no_model_can_have_is_refused(folder):
    path = folder / "polyencoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"poly_attention": "multihead"}))
    with pytest.raises(ConfigError, match="polyencoder.json: poly_attention is"):
        GraphEncoder.open(folder)


def test_vectors_of_both_backends_mix(exported, dialogues, sentences):
    """Candidates that torch encoded, for contexts that onnxruntime encodes."""
    torch_ranker, folder = exported("poly-codes")
    encoder = GraphEncoder.open(folder, device="cpu")
    contexts = encoder.encode_contexts([encoder.text.tokenize_context(turns) for turns in dialogues])
    mixed = encoder.score(contexts, torch_ranker.encode_candidates(sentences))
    np.testing.assert_allclose(mixed, torch_ranker.score(dialogues, sentences), **CLOSE)
    assert encoder.model.candidate_fingerprint == compute_candidate_fingerprint(torch_ranker.model, torch_ranker.text)


@pytest.mark.parametrize("kind", ["cross", "late", "poly-codes"])
def test_each_context_has_candidates_of_its_own(exported, kind, make_tokens):
    """`index` names them, below 0 there is none."""
    torch_ranker, folder = exported(kind)
    contexts, candidates = make_tokens([5, 9]), make_tokens([4, 3, 8], seed=1)
    index = np.array([[2, 0, -1], [1, 1, 0]])
    expected = torch_ranker.encoder.score_ids(contexts, candidates, index)
    scores = GraphEncoder.open(folder, device="cpu").score_ids(contexts, candidates, index)
    assert scores[0, 2] == -np.inf
    np.testing.assert_allclose(scores, expected, **CLOSE)


def test_a_cross_encoder_has_no_vectors(exported):
    ranker = Ranker.from_pretrained(exported("cross")[1], backend="onnx", device="cpu")
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        ranker.encode_candidates(["hello"])


@pytest.mark.parametrize("kind", ["bi", "cross"])
def test_there_are_no_weights_to_save(exported, tmp_path, kind):
    ranker = Ranker.from_pretrained(exported(kind)[1], backend="onnx", device="cpu")
    for save in (lambda: ranker.save_pretrained(tmp_path / "saved"), lambda: write_model_card(ranker, name="saved")):
        with pytest.raises(InputError, match="a ranker of ONNX graphs has no torch weights to save"):
            save()
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(exported, sentences, threads):
    torch_ranker, folder = exported("bi")
    ranker = Ranker.from_pretrained(folder, backend="onnx", threads=threads)
    assert ranker.model.graphs[CONTEXT]._session.get_session_options().intra_op_num_threads == threads
    np.testing.assert_allclose(ranker.score(["hi"], sentences), torch_ranker.score(["hi"], sentences), **CLOSE)


def test_the_graphs_run_on_the_cpu_when_asked(exported):
    model = GraphEncoder.open(exported("bi")[1], device="cpu").model
    assert model.graphs[CONTEXT]._session.get_providers() == ["CPUExecutionProvider"]


def test_cuda_when_available(exported, sentences):
    import onnxruntime

    if not torch.cuda.is_available() or "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("no CUDA in torch or onnxruntime")
    torch_ranker, folder = exported("poly-n_last")
    ranker = Ranker.from_pretrained(folder, backend="onnx")
    assert ranker.model.graphs[CONTEXT]._session.get_providers()[0] == "CUDAExecutionProvider"
    assert ranker.device == "cuda"
    expected = torch_ranker.score(["hi"], sentences)
    np.testing.assert_allclose(ranker.score(["hi"], sentences), expected, rtol=1e-2, atol=1e-2)  # TF32


@pytest.mark.parametrize("device", ["cuda", "nonsense", "cpu:x", "meta"])
def test_a_device_that_onnxruntime_does_not_have(device, exported, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match=f"cannot run on {device}: use device="):
        Ranker.from_pretrained(exported("bi")[1], backend="onnx", device=device)


def test_an_unknown_backend(exported):
    with pytest.raises(ConfigError, match="backend is 'tensorrt'; it must be one of torch, onnx, onnx-int8"):
        Ranker.from_pretrained(exported("bi")[1], backend="tensorrt")


def test_a_folder_without_graphs(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no onnx.json in it.*write them with `polyencoder export`"):
        Ranker.from_pretrained(tmp_path, backend="onnx")


@pytest.mark.parametrize("missing", ["context.onnx", "candidates.onnx", "polyencoder.json", "tokenizer.json"])
def test_a_missing_file(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"{missing}.*write them with `polyencoder export`"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_missing_int8_graphs(folder):
    with pytest.raises(CheckpointError, match="no context.int8.onnx .* `polyencoder export` or `"):
        Ranker.from_pretrained(folder, backend="onnx-int8")


@pytest.mark.parametrize("content", [b"", b"not a graph", None])
def test_a_damaged_graph(folder, content):
    path = folder / "candidates.onnx"
    path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
    with pytest.raises(CheckpointError, match="candidates.onnx: not a readable ONNX graph") as caught:
        Ranker.from_pretrained(folder, backend="onnx")
    assert "\n" not in str(caught.value)


def test_weights_that_were_saved_again(folder, make_ranker):
    """Training on and saving into the same folder must not leave the graphs in use."""
    make_ranker("bi", reduction="mean", seed=5).save_pretrained(folder)
    with pytest.raises(CheckpointError, match="not the weights of these graphs"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_without_onnxruntime(folder, block_import):
    block_import("onnxruntime")
    with pytest.raises(ConfigError, match=r"`onnxruntime` is not installed: pip install 'parlai-polyencoder\[onnx\]'"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_onnxruntime_reports_nothing(folder, tmp_path):
    """onnxruntime's telemetry would keep an id of the machine in the user's cache, and send events."""
    code = f"from polyencoder import Ranker; Ranker.load({str(folder)!r}, backend='onnx').score(['hi'], ['hello'])"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert not list((tmp_path / "home").rglob(".onnxruntime"))


@pytest.mark.usefixtures("forked_commands")
def test_the_package_is_imported_without_onnxruntime():
    without = "import sys; sys.modules.update(onnxruntime=None, onnx=None)"
    code = f"{forgetting('polyencoder')}{without}; import polyencoder.export.onnx"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_index_of_torch_is_searched_with_graphs(exported, sentences, tmp_path):
    ranker, folder = exported("poly-codes")
    index = ranker.index(sentences, tmp_path / "index")
    graphs = Ranker.from_pretrained(folder, backend="onnx")
    hits, expected = (engine.search(["hi !"], tmp_path / "index", top_k=len(index)) for engine in (graphs, ranker))
    assert [hit.text for hit in hits] == [hit.text for hit in expected]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], rel=1e-5)


def test_probabilities(exported, sentences, tmp_path):
    ranker, source = exported("poly-first_n_last")
    folder = shutil.copytree(source, tmp_path / "model")
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(
        temperature=0.2, none=-3.0, fingerprint=fingerprint, promises=(promise(threshold=0.1),)
    )
    ranker.calibration.save(folder)
    graphs = Ranker.from_pretrained(folder, backend="onnx")
    try:
        for options in ({}, {"min_probability": 0.2}, {"max_risk": 0.1}):
            expected = ranker.rank("hi", [*sentences, sentences[0]], **options)
            ranked = graphs.rank("hi", [*sentences, sentences[0]], **options)
            assert [hit.index for hit in ranked] == [hit.index for hit in expected]
            assert [hit.probability for hit in ranked] == pytest.approx([hit.probability for hit in expected], abs=1e-5)
        assert 0 < len(expected) < len(sentences)
    finally:
        ranker.calibration = None  # other tests share it
    (folder / "calibration.json").write_text((folder / "calibration.json").read_text().replace(fingerprint, "other"))
    with warnings.catch_warnings(record=True) as caught:
        assert Ranker.from_pretrained(folder, backend="onnx").calibration is None
    assert "fitted to other weights" in str(caught[0].message)


def test_a_selector_chooses_as_with_torch(exported, sentences):
    ranker, folder = exported("poly-first_n_last")
    actual = Selector(Ranker.from_pretrained(folder, backend="onnx")).select("hi", sentences, top_k=3)
    expected = Selector(ranker).select("hi", sentences, top_k=3)
    assert [pick.option for pick in actual.chosen] == [pick.option for pick in expected.chosen]
    assert [pick.score for pick in actual.chosen] == pytest.approx([pick.score for pick in expected.chosen], abs=1e-5)


def test_int8_graphs_need_a_calibration_of_their_own(exported, sentences, tmp_path):
    ranker, source = exported("bi-mean_first")
    folder = shutil.copytree(source, tmp_path / "model")
    quantize_int8(folder)
    Calibration(temperature=0.2, none=-3.0, fingerprint=compute_model_fingerprint(ranker.model, ranker.text)).save(
        folder
    )
    with pytest.warns(UserWarning, match=r"calibration.json: not used, .* with another (--)?backend"):
        int8 = Ranker.from_pretrained(folder, backend="onnx-int8")
    with pytest.raises(ConfigError, match=f"trained since: calibrate {folder} with .* (--)?backend"):
        int8.rank("hi", sentences, min_probability=0.5)


def test_a_damaged_model_has_no_ranking(exported, sentences, monkeypatch):
    ranker = Ranker.from_pretrained(exported("bi-mean_first")[1], backend="onnx")
    monkeypatch.setattr(ranker, "score", lambda *_: np.full((1, 8), np.nan, dtype=np.float32))
    with pytest.raises(InputError, match="the model's scores are nan"):
        ranker.rank("hi", sentences)


def test_the_configuration_is_that_of_the_model(exported):
    ranker, folder = exported("poly-first_n_last")
    assert Ranker.from_pretrained(folder, backend="onnx").model.config.to_json() == ranker.model.config.to_json()
    assert json.loads((folder / CONFIG).read_text())["architecture"] == "poly"
