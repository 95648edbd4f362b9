"""The folder of a model is a `SentenceTransformer` or `CrossEncoder`, with its vectors and scores."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from polyencoder.config import DenseConfig
from polyencoder.errors import CheckpointError
from polyencoder.modeling.layout import list_layout_files
from polyencoder.ranker import Ranker
from tests.model_folders import OURS, files_in, files_of

pytestmark = pytest.mark.slow

TWO_DENSE = (DenseConfig(size=12, activation="tanh"), DenseConfig(size=8, bias=False))
DENSE = ("2_Dense", "3_Dense")
LONG = "i like to ski in the mountains . do you have any pets ? " * 12
TEXTS = ["hello , how are you today ?", "i am a teacher .", LONG]

# name -> architecture, fields of the configuration, the modules that there are
MODELS = {
    "one tower and dense": (
        "bi",
        {"share_encoders": True, "dense": TWO_DENSE, "normalize": True, "reduction": "mean"},
        ["", "1_Pooling", "2_Dense", "3_Dense"],
    ),
    "two towers and dense": (
        "bi",
        {"dense": TWO_DENSE, "normalize": True, "reduction": "max"},
        [f"{side}_{module}" for side in ("document", "query") for module in ("0_Transformer", "1_Pooling", *DENSE)],
    ),
    "a perceptron": (
        "bi",
        {"share_encoders": True, "candidate_mlp": True},
        ["document_2_Dense", "document_3_Dense", "query_0_Transformer", "query_1_Pooling"],
    ),
    "poly": (
        "poly",
        {"normalize": True, "output_scaling": 3.0},
        ["document_0_Transformer", "document_1_Pooling", "query_0_Transformer", "query_1_Pooling"],
    ),
    "late": ("late", {"share_encoders": True, "reduction": "mean", "turn_end": 3}, ["", "1_Pooling"]),
}


@pytest.fixture
def saved(make_ranker, tmp_path):
    """(architecture, **fields) -> a ranker whose towers differ, and its folder."""

    def make(architecture: str, **fields) -> tuple[Ranker, str]:
        ranker = make_ranker(architecture, **fields)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            for parameter in ranker.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        ranker.save_pretrained(tmp_path / "saved")
        return ranker, str(tmp_path / "saved")

    return make


@pytest.mark.parametrize("name", MODELS)
def test_vectors(saved, text_config, tmp_path, name):
    architecture, fields, folders = MODELS[name]
    # one tokenizer cuts contexts and candidates at the same side
    text = replace(text_config, truncation_side="right" if "share_encoders" in fields else "left")
    ranker, folder = saved(architecture, text=text, **fields)
    assert sorted({file.rpartition("/")[0] for file in files_in(tmp_path / "saved")} | {""}) == sorted({*folders, ""})
    theirs = SentenceTransformer(folder, device="cpu")
    scale = ranker.model.config.output_scaling
    sides = {"candidate": theirs.encode_document, "context": theirs.encode_query}
    for kind, encode in sides.items() if architecture == "bi" else [("candidate", theirs.encode_document)]:
        vectors = ranker.encode(TEXTS, kind=kind)
        np.testing.assert_allclose(encode(TEXTS) * scale, vectors, atol=1e-5, rtol=0)


def test_each_tower_is_read_by_transformers(saved, tmp_path):
    ranker, _ = saved("poly")
    for side, tower in zip(("query", "document"), ranker.model.towers, strict=True):
        path = tmp_path / "saved" / f"{side}_0_Transformer"
        tokens = AutoTokenizer.from_pretrained(path)(TEXTS[0], return_tensors="pt")
        assert tokens["input_ids"][0].tolist() == ranker.text.tokenize_candidates([TEXTS[0]])[0]
        outputs = AutoModel.from_pretrained(path)(**tokens).last_hidden_state
        batch = ranker.text.batch_candidates([TEXTS[0]])
        torch.testing.assert_close(outputs, tower(batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"reduction": "mean", "output_scaling": 0.3},
        {"dense": (DenseConfig(size=8, activation="gelu", norm_eps=1e-5),)},
        {"pair_start": "end"},
        {"pair_start": "same_segment"},
        {"pair_start": True},
    ],
)
def test_scores(saved, fields):
    ranker, folder = saved("cross", **fields)
    pairs = [(context, text) for context in TEXTS[:2] for text in TEXTS[:2]]
    scores = CrossEncoder(folder, device="cpu").predict(pairs)
    expected = ranker.score(TEXTS[:2], TEXTS[:2]).flatten()
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("architecture", "fields", "tower"),
    [
        ("bi", {"reduction": "mean_except_first", "share_encoders": True}, "0_Transformer"),
        ("poly", {"reduction": "mean_first"}, "query_0_Transformer"),
        ("cross", {"reduction": "mean_first"}, "0_Transformer"),
        ("cross", {"dense": (DenseConfig(size=8, activation="tanh", norm_eps=0.1),)}, "0_Transformer"),
    ],
)
def test_what_their_modules_cannot_compute_is_no_model_of_theirs(saved, tmp_path, architecture, fields, tower):
    ranker, folder = saved(architecture, **fields)
    assert not {"modules.json", "router_config.json", "config.json"} & {*files_in(tmp_path / "saved")}
    AutoModel.from_pretrained(f"{folder}/{tower}")
    again = Ranker.from_pretrained(folder, device="cpu")
    assert np.array_equal(again.score(TEXTS[:1], TEXTS), ranker.score(TEXTS[:1], TEXTS))


@pytest.mark.parametrize("architecture", ["convert", "bi"])
def test_a_backbone_of_no_class_of_transformers_has_no_module(make_ranker, make_config, tmp_path, architecture):
    fields = {}
    if architecture == "bi":
        fields = {"backbone": make_config("bi").backbone | {"embedding_norm": False}}
    ranker = make_ranker(architecture, **fields)
    ranker.save_pretrained(tmp_path)
    assert files_in(tmp_path) == sorted(OURS)


def test_a_model_of_another_layout_leaves_nothing(make_ranker, tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "mine.txt").write_text("mine")
    for fields in ({}, {"share_encoders": True}, {}, {"reduction": "mean_first"}):
        ranker = make_ranker("bi", **fields)
        ranker.save_pretrained(tmp_path)
        assert files_in(tmp_path) == files_of(ranker.model, "1_Pooling/mine.txt")
        assert {*list_layout_files(tmp_path)} == {*files_of(ranker.model)}
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
            name.partition("/")[0] for name in files_in(tmp_path) if "/" in name
        }


def test_no_folder_is_written_through_a_link_or_over_a_file(make_ranker, tmp_path):
    (tmp_path / "theirs").mkdir()
    old = make_ranker("bi", share_encoders=True)
    old.save_pretrained(tmp_path / "model")
    for path in (tmp_path / "model" / "query_0_Transformer", tmp_path / "model" / "document_1_Pooling"):
        path.symlink_to(tmp_path / "theirs") if path.name[0] == "q" else path.touch()
        with pytest.raises(CheckpointError, match=r"cannot be written \(Not a directory"):
            make_ranker("bi").save_pretrained(tmp_path / "model")
        path.unlink()
        assert files_in(tmp_path / "model") == files_of(old.model)
    assert files_in(tmp_path / "theirs") == []


def test_prompts_and_similarity(make_ranker, make_config, tmp_path):
    text = replace(make_config("bi").text, context_prompt="query : ", candidate_prompt="passage : ")
    make_ranker("bi", text=text, normalize=True, vector_dim=8).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "query : ", "document": "passage : "}
    assert (settings["similarity_fn_name"], settings["truncate_dim"]) == ("cosine", 8)
    theirs, ours = SentenceTransformer(str(tmp_path), device="cpu"), Ranker.from_pretrained(tmp_path, device="cpu")
    vectors = theirs.encode_document(TEXTS[:2])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = ours.encode(TEXTS[:2], kind="candidate", normalize=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5, rtol=0)
