"""What a name leads to: a folder, a model file, an encoder; and encoders in 16 bits that stay the same model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.encoding.fingerprint import compute_candidate_fingerprint, compute_model_fingerprint
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.export.folder import save_ranker
from polyencoder.loading import cast_weights, load_encoder
from polyencoder.ranker import Ranker
from tests.encoders import ENCODERS
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late", "convert"])
def test_a_folder(make_ranker, tmp_path, sentences, architecture):
    ranker = make_ranker(architecture)
    save_ranker(ranker, tmp_path / "model")
    path, encoder = load_encoder(tmp_path / "model", device="cpu")
    assert path == tmp_path / "model"
    assert not encoder.model.training
    scores = [scorer.score(["hello"], sentences) for scorer in (Scorer(encoder), ranker)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_no_initial_weights_are_drawn(kind, backbone_folder, tmp_path):
    """That would take longer than reading the file's."""
    save_ranker(Ranker.from_backbone(backbone_folder(kind), device="cpu"), tmp_path / "model")
    before = torch.get_rng_state()
    load_encoder(tmp_path / "model", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_encoder_ranks_as_a_bi_encoder_with_one_tower_and_says_so(backbone_folder, caplog):
    _, encoder = load_encoder(backbone_folder("bert"), device="cpu")
    assert encoder.model.config.architecture == "bi"
    assert encoder.model.config.share_encoders
    assert "is an encoder: it ranks as a bi-encoder without training" in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        (3, {}, "a model's name must be a text or a path, got 3"),
        (None, {}, "a model's name must be a text or a path, got None"),
        ("x", {"backend": "jax"}, "backend is 'jax'; it must be one of torch, onnx, onnx-int8"),
        ("x", {"dtype": "int4"}, "dtype is 'int4'; it must be one of float32, float16, bfloat16"),
        ("x", {"dtype": "bfloat16", "backend": "onnx"}, "but backend onnx has its own dtype; leave it out"),
        ("x", {"device": "gpu9"}, "device 'gpu9' cannot be used"),
        ("./none", {}, "none: no such folder or file"),
    ],
)
def test_what_cannot_be_loaded(name, settings, problem, no_network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, CheckpointError), match=problem):
        load_encoder(name, **({"backend": "torch", "device": "cpu"} | settings))


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_encoders_in_16_bits_are_the_same_model_for_indexes_and_calibrations(make_ranker, architecture, sentences):
    ranker, plain = make_ranker(architecture), make_ranker(architecture)
    before = compute_model_fingerprint(plain.model, plain.text)
    cast_weights(ranker.encoder, "bfloat16")
    assert {weight.dtype for backbone in ranker.model.backbones for weight in backbone.parameters()} == {torch.bfloat16}
    assert compute_model_fingerprint(ranker.model, ranker.text) == before
    if ranker.model.has_vectors:
        fingerprint = compute_candidate_fingerprint(ranker.model, ranker.text)
        assert fingerprint == compute_candidate_fingerprint(plain.model, plain.text)
    scores, expected = (each.score(["do you ski ?"], sentences) for each in (ranker, plain))
    assert scores.dtype == np.float32
    assert not np.array_equal(scores, expected)
    np.testing.assert_allclose(scores, expected, rtol=0.1, atol=0.1 * abs(expected).max())


def test_float32_changes_nothing(make_ranker):
    ranker = make_ranker("bi")
    cast_weights(ranker.encoder, "float32")
    assert not any(backbone.rounded for backbone in ranker.model.backbones)


@pytest.mark.parametrize(
    ("architecture", "dtype", "problem"),
    [
        ("convert", "bfloat16", "dtype is 'bfloat16', but a .* has its own dtype; leave it out"),
        ("bi", "float16", "dtype 'float16' needs a GPU; on a CPU 'bfloat16' may be faster"),
    ],
)
def test_a_dtype_that_cannot_be_leaves_the_weights(make_ranker, architecture, dtype, problem):
    ranker: Ranker = make_ranker(architecture)
    with pytest.raises(ConfigError, match=problem):
        cast_weights(ranker.encoder, dtype)
    assert {parameter.dtype for parameter in ranker.model.parameters()} == {torch.float32}


@mostly_long("kind", ["bert", "reranker", "bi", "poly", "cross", "late", "convert", *ENCODERS[1:]], quick=7)
def test_two_loads_are_equal(kind, backbone_folder, make_reranker, make_ranker, tmp_path):
    """Bit by bit: what the files lack is never drawn."""
    if kind in ENCODERS:
        folder = backbone_folder(kind)
    elif kind == "reranker":
        folder = make_reranker("bert")
    else:
        folder = tmp_path / "model"
        save_ranker(make_ranker(kind), folder)
    first, second = (Ranker.load(folder, device="cpu") for _ in range(2))
    assert compute_model_fingerprint(first.model, first.text) == compute_model_fingerprint(second.model, second.text)
    weights, again = first.model.state_dict(), second.model.state_dict()
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
