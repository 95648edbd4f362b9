"""The description of exported graphs: whole and of this version, or an error that says what to do."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import pytest
import safetensors.torch
import torch

from polyencoder.encoding.graph_files import (
    DESCRIPTION,
    Description,
    check_graphs,
    check_saved_weights,
    download_patterns,
    get_int8_name,
    read_description,
)
from polyencoder.errors import CheckpointError
from polyencoder.export.onnx.export import check_weights
from polyencoder.storage.digests import compute_weights_fingerprint
from polyencoder.storage.names import DIGESTS, WEIGHTS


@pytest.fixture
def folder(tmp_path):
    """Two files in the place of graphs, described with their digests."""
    graphs = {name: name.encode() * 9 for name in ("context.onnx", "candidates.onnx")}
    for name, content in graphs.items():
        (tmp_path / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in graphs.items()}
    description = Description(
        weights="abc", candidates=None, differences=dict.fromkeys(graphs, 1e-6), graphs=digests, has_one_vector=True
    )
    (tmp_path / DESCRIPTION).write_text(description.to_json(), encoding="utf-8")
    return tmp_path


def test_what_was_written_is_read(folder):
    description = read_description(folder)
    assert json.loads((folder / DESCRIPTION).read_text()) == asdict(description)
    assert (description.weights, description.candidates) == ("abc", None)


def test_graphs_are_compared_with_their_digests(folder):
    read = []
    assert check_graphs(folder, progress=read.append) == ["candidates.onnx", "context.onnx"]
    assert sum(read) == sum((folder / name).stat().st_size for name in check_graphs(folder))
    with open(folder / "context.onnx", "r+b") as file:
        file.write(b"C")  # as long as before
    with pytest.raises(CheckpointError, match=r"context\.onnx: damaged, its checksum has changed"):
        check_graphs(folder)
    (folder / "candidates.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"candidates\.onnx: cannot be read \(No such file"):
        check_graphs(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda values: values.update(format_version=9), "format version 9, but this version of polyencoder reads 1"),
        (lambda values: values.pop("weights"), r"damaged \(ConfigError: weights is missing.*\); export again"),
        (lambda values: values.pop("format_version"), r"damaged \(KeyError: 'format_version'\); export again"),
        (lambda values: values.update(more=1), r"damaged \(ConfigError: .*more.*\); export again"),
        (lambda values: values.update(weights=None), r"damaged \(ConfigError: weights is .*; it must be a text"),
        (lambda values: values.update(candidates=3), r"damaged \(ConfigError: candidates is 3; it must be a text"),
        (lambda values: values.update(differences=None), r"damaged \(ConfigError: differences is None"),
        (
            lambda values: values.update(score={"term_weights": [0.5, float("nan")]}),
            r"damaged \(ConfigError: score is nan; it must be a finite number",
        ),
        (
            lambda values: values.update(differences={"a.onnx": 0}),
            r"damaged \(ValueError: differences are of \['a.onnx'",
        ),
        (lambda values: values.update(score={"scale": "a"}), r"damaged \(ConfigError: score is 'a'; it must be a list"),
        (lambda values: values.update(graphs=[]), r"damaged \(ConfigError: graphs is .*; it must be an object\)"),
    ],
)
def test_a_description_of_another_kind(folder, change, problem):
    values = json.loads((folder / DESCRIPTION).read_text())
    change(values)
    (folder / DESCRIPTION).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=problem):
        read_description(folder)


def test_a_description_that_is_missing_or_cut_off(folder):
    path = folder / DESCRIPTION
    path.write_text(path.read_text()[:40])
    with pytest.raises(CheckpointError, match=r"onnx\.json: damaged \(JSONDecodeError"):
        read_description(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no onnx\.json in it: it has no exported graphs; write them with"):
        read_description(folder)


def test_weights_of_another_model(make_ranker, tmp_path):
    ranker, other = make_ranker("bi"), make_ranker("bi", seed=1)
    first, second = (compute_weights_fingerprint(owner.model.state_dict()) for owner in (ranker, other))
    check_weights(tmp_path, "anything", remedy="export again")  # none there: the graphs are all
    ranker.save_pretrained(tmp_path)
    check_weights(tmp_path, first, remedy="export again")
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: not the weights of these graphs; export again"):
        check_weights(tmp_path, second, remedy="export again")
    for name in ("query_0_Transformer/model.safetensors", WEIGHTS):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
        with pytest.raises(CheckpointError, match=f"{name}: damaged or not a safetensors file"):
            check_weights(tmp_path, first, remedy="export again")


def test_the_files_of_each_precision():
    assert get_int8_name("context.onnx") == "context.int8.onnx"
    plain, small = download_patterns("float32"), download_patterns("int8")
    assert DESCRIPTION in plain
    assert DESCRIPTION in small
    assert [name for name in small if name not in plain] == [
        get_int8_name(name) for name in plain if name.endswith(".onnx")
    ]


def test_the_weights_that_are_saved_beside(tmp_path):
    """The check reads their fingerprint alone, without torch."""
    check_saved_weights(tmp_path, "abc")  # no weights
    for metadata in (None, {DIGESTS: json.dumps({WEIGHTS: "abc"})}):
        safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / WEIGHTS, metadata=metadata)
        check_saved_weights(tmp_path, "abc")
    with pytest.raises(CheckpointError, match="not the weights of these graphs; the model was saved again"):
        check_saved_weights(tmp_path, "other")
    for content in (b"", b"damaged file", (3).to_bytes(8, "little") + b"[1]", b"\xff" * 9):
        (tmp_path / WEIGHTS).write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
            check_saved_weights(tmp_path, "abc")
