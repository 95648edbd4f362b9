"""A cross-encoder's last layer from the head for next utterances that lies beside an encoder."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from polyencoder.errors import CheckpointError
from polyencoder.modeling.pretrained_heads import HEADS, begins_with_head, read_heads, start_from_heads

HEAD = {"next_utterance.weight": torch.randn(1, 16), "next_utterance.bias": torch.tensor([0.5])}


@pytest.fixture
def folder(tmp_path):
    """({name: tensor}) -> a folder with these heads."""

    def make(heads):
        safetensors.torch.save_file(heads, tmp_path / HEADS)
        return tmp_path

    return make


def test_the_head_becomes_the_last_layer(folder, make_model):
    model = make_model("cross")
    path = folder({**HEAD, "masked_words.bias": torch.zeros(3)})
    assert begins_with_head(model, path)
    start_from_heads(model, path)
    assert model.linear.weight.equal(HEAD["next_utterance.weight"])
    assert model.linear.bias.equal(HEAD["next_utterance.bias"])
    assert model.linear.weight.requires_grad


@pytest.mark.parametrize(
    ("architecture", "fields", "heads"),
    [
        ("bi", {}, HEAD),  # it has no such layer
        ("cross", {"reduction": "mean"}, HEAD),  # the head reads the first output
        ("cross", {}, {"masked_words.bias": torch.zeros(3)}),
        ("cross", {}, {"next_utterance.weight": torch.randn(1, 16)}),  # half of one
        ("cross", {}, HEAD | {"next_utterance.weight": torch.randn(1, 8)}),  # of another encoder
    ],
)
def test_without_a_head_that_fits_nothing_is_changed(folder, make_model, architecture, fields, heads):
    model, path = make_model(architecture, **fields), folder(heads)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not begins_with_head(model, path)
    start_from_heads(model, path)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_a_folder_without_heads(tmp_path, make_model):
    assert read_heads(tmp_path) == {}
    assert not begins_with_head(make_model("cross"), tmp_path)


def test_heads_that_cannot_be_used(folder, tmp_path, make_model):
    folder(HEAD | {"next_utterance.bias": torch.tensor([float("nan")])})
    with pytest.raises(CheckpointError, match=rf"{HEADS}: 1 of the 1 numbers in next_utterance.bias are nan"):
        start_from_heads(make_model("cross"), tmp_path)
    (tmp_path / HEADS).write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match=f"{HEADS}: damaged or not a safetensors file"):
        read_heads(tmp_path)
