"""A folder of graphs, opened."""

from __future__ import annotations

import shutil
import sys

import pytest

from polyencoder import CheckpointError
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint, compute_model_fingerprint
from polyencoder.encoding.graph_files import DESCRIPTION
from polyencoder.encoding.graphs import GraphEncoder, find_graphs_folder
from polyencoder.storage.digests import compute_weights_fingerprint

pytestmark = pytest.mark.slow


def test_it_is_the_exported_ranker(exported):
    ranker, folder = exported("bi-mean_first")
    encoder = GraphEncoder.open(folder, threads=1)
    model = encoder.model
    assert model.config == ranker.model.config
    assert encoder.text.compute_fingerprint() == ranker.text.compute_fingerprint()
    assert model.weights_fingerprints == {"float32": compute_weights_fingerprint(ranker.model.state_dict())}
    assert model.candidate_fingerprint == compute_candidate_fingerprint(ranker.model, ranker.text)
    assert compute_model_fingerprint(model, encoder.text) == compute_model_fingerprint(ranker.model, ranker.text)


def test_the_folder_of_graphs(tmp_path):
    assert find_graphs_folder(tmp_path) == tmp_path
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match="model: a model file has no ONNX graphs"):
        find_graphs_folder(tmp_path / "model")


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "./nothing"])
def test_a_name_that_is_no_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        find_graphs_folder(name)


def test_a_name_of_the_hub_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find_graphs_folder(tmp_path) == tmp_path
    with pytest.raises(CheckpointError, match="^some/name: no such folder, and .* `huggingface_hub`, which is not"):
        find_graphs_folder("some/name")


def test_weights_that_are_not_for_the_graphs(exported, edit_json, tmp_path):
    """With other weights the scores would be of other vectors."""
    score = GraphEncoder.open(exported("late")[1]).model.term_weights
    changes = [None, {}, score | {"term_weights": [1.0]}, score | {"scale": []}, score | {"token_weight": [0.0] * 15}]
    for kind, wrong in (("late", changes), ("bi", [score])):
        folder = shutil.copytree(exported(kind)[1], tmp_path / kind)
        for weights in wrong:
            edit_json(folder / DESCRIPTION, score=weights)
            with pytest.raises(CheckpointError, match=r"onnx.json: damaged: the graphs need .*; export again"):
                GraphEncoder.open(folder)
