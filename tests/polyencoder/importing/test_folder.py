"""A backbone's folder: what transformers reads of it, and that an encoder which does not fit leaves none."""

from __future__ import annotations

import os

import pytest
import torch
import transformers

from polyencoder.errors import CheckpointError
from polyencoder.importing.folder import save_backbone, save_tokenizer

TOKENS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}


@pytest.fixture
def model(tokenizer) -> transformers.BertModel:
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    return transformers.BertModel(config).eval()


@pytest.fixture
def save(model, tokenizer, tmp_path):
    """(change of the weights) -> the folder of the model."""

    def make(change=None, folder="encoder"):
        weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("pooler.")}
        if change is not None:
            change(weights)
        save_backbone(
            tmp_path / folder,
            config=transformers.BertConfig.from_dict(model.config.to_dict()),
            weights=weights,
            tokenizer=tokenizer,
            special_tokens=TOKENS,
            origin="old.pt",
        )
        return tmp_path / folder

    return make


@torch.no_grad()
def test_transformers_reads_the_model_and_its_tokenizer(save, model, tokenizer, sentences):
    folder = save()
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    again = transformers.AutoModel.from_pretrained(folder).eval()
    assert type(again) is transformers.BertModel
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = reader(sentences, padding=True, return_tensors="pt")
    assert inputs["input_ids"][0, :4].tolist() == tokenizer.encode(sentences[0]).ids[:4]
    assert {"input_ids", "attention_mask", "token_type_ids"} == set(inputs)
    assert (reader.cls_token, reader.sep_token, reader.pad_token) == ("[CLS]", "[SEP]", "[PAD]")
    torch.testing.assert_close(again(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


def test_a_model_without_segments_gets_none(tokenizer, tmp_path, model):
    save_tokenizer(tmp_path, tokenizer, special_tokens=TOKENS)
    assert "token_type_ids" in transformers.AutoTokenizer.from_pretrained(tmp_path).model_input_names
    config = transformers.DistilBertConfig(
        vocab_size=tokenizer.get_vocab_size(), dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=40
    )
    weights = transformers.DistilBertModel(config).state_dict()
    save_backbone(tmp_path, config=config, weights=weights, tokenizer=tokenizer, special_tokens=TOKENS, origin="old.pt")
    assert "token_type_ids" not in transformers.AutoTokenizer.from_pretrained(tmp_path)("hello")


def _drop(weights) -> None:
    del weights["embeddings.LayerNorm.bias"]


def _add(weights) -> None:
    weights["more"] = torch.zeros(1)


def _shorten(weights) -> None:
    weights["embeddings.LayerNorm.bias"] = torch.zeros(8)


def _break(weights) -> None:
    weights["embeddings.LayerNorm.bias"] = torch.full((16,), float("nan"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_drop, "old.pt: .*: embeddings.LayerNorm.bias is missing"),
        (_add, "old.pt: .*: more is not part of this model"),
        (_shorten, r"old.pt: .*: embeddings.LayerNorm.bias has shape \[8\], the model needs \[16\]"),
        (_break, "old.pt: 16 of the 16 numbers in embeddings.LayerNorm.bias are nan"),
    ],
)
def test_weights_that_do_not_fit_leave_the_encoder_that_was_there(save, change, problem):
    folder = save()
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    with pytest.raises(CheckpointError, match=problem):
        save(change)
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


def test_a_file_in_the_place_of_the_folder(save, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="file: is a file; give a folder"):
        save(folder="file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(CheckpointError, match="link: is a link to gone, which does not exist; give a folder"):
        save(folder="link")
