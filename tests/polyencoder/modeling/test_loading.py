"""Encoders by folder or hub id, and what is refused."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.loading import build_backbone, load_pretrained, load_tokenizer
from polyencoder.ranker import Ranker
from tests.encoders import ENCODERS


@pytest.fixture
def copied(backbone_folder, tmp_path):
    """(kind) -> a copy of the tiny model's folder that a test may damage."""
    return lambda kind: shutil.copytree(backbone_folder(kind), tmp_path / kind)


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_tokenizer_names_its_special_tokens(backbone_folder, kind):
    tokenizer, special = load_tokenizer(backbone_folder(kind))
    expected = ["<s>", "</s>", "</s>", "<pad>"] if kind == "roberta" else ["[CLS]", "[SEP]", "[SEP]", "[PAD]"]
    assert [special[f] for f in ("start_token", "end_token", "separator", "pad_token")] == expected
    assert tokenizer.encode("two dogs").tokens == ["two", "dogs"]


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bert_decoder"])
def test_models_that_are_no_encoders_are_refused(backbone_folder, kind):
    with pytest.raises(ConfigError, match=f"^backbone .*{kind.split('_')[0]} is not an encoder; use BERT"):
        load_pretrained(backbone_folder(kind))


@pytest.mark.parametrize("load", [load_pretrained, load_tokenizer])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no/such-model", "neither a folder of a Hugging Face encoder nor"),
        ("./no such folder", "no such folder or file; give"),
        ("/no/such/folder/at/all", "no such folder or file; give"),
        ("no such folder", "no such folder or file, and no model on the hub can have this name"),
        ("n" * 300, "no such folder or file, and no model on the hub can have this name"),
    ],
)
def test_a_backbone_that_is_not_there(load, name, problem):
    with pytest.raises(ConfigError, match=f"^backbone {name}: {problem}") as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_an_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match="^backbone"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x10", b"not weights", None])
def test_damaged_weights(copied, content):
    weights = copied("bert") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ConfigError, match="^backbone") as caught:
        load_pretrained(weights.parent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [load_pretrained, Ranker.load])
def test_weights_that_are_missing_are_named(copied, load):
    """They would be random: no index of such an encoder could be searched."""
    path = copied("bert") / "model.safetensors"
    missing = "encoder.layer.1.output.dense.weight"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != missing}, path)
    with pytest.raises(CheckpointError, match=f"^backbone {path.parent}: 1 .*{missing}"):
        load(path.parent)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "0.auto_model."])
@pytest.mark.parametrize("kind", ENCODERS)
def test_prefixes_of_wrapped_models_are_taken_off(copied, kind, prefix):
    """As DistributedDataParallel, torch.compile and sentence-transformers name weights."""
    path = copied(kind) / "model.safetensors"
    expected = load_pretrained(path.parent).state_dict()
    save_file({f"{prefix}{name}": tensor for name, tensor in load_file(path).items()}, path)
    found = load_pretrained(path.parent).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_tokenizer_with_more_tokens_than_embeddings(copied):
    """Training gives them embeddings, the same at each load; without training they have none."""
    folder = copied("bert")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<{i}>" for i in range(64)] + ["<order>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=f"{folder}.*<order>"):
        Ranker.load(folder)
    first, second = (Ranker.from_backbone(folder, "bi", text={"text_truncate": 40}).model for _ in range(2))
    assert first.config.backbone["vocab_size"] == len(tokenizer)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_heads_and_poolers_are_no_matter_for_a_report(make_reranker, caplog, capfd):
    """Of a reranker transformers says that it does not know its head, and that its pooler is to be trained."""
    folder, log = make_reranker("roberta"), logging.getLogger("transformers")
    level = log.level
    capfd.readouterr()
    load_pretrained(folder)
    assert caplog.text == capfd.readouterr().err == ""
    assert log.level == level


@pytest.mark.parametrize("model_type", ["bert", "something-of-theirs"])
@pytest.mark.parametrize("answer", ["y", "n"])
def test_code_that_comes_with_a_model_never_runs(copied, edit_json, monkeypatch, tmp_path, model_type, answer):
    """Not even when the person in front of the terminal, who may be nobody, would say yes."""
    folder = copied("bert")
    witness = tmp_path / "the-code-ran"
    (folder / "theirs.py").write_text(
        f"open({str(witness)!r}, 'w').close()\n"
        "from transformers import BertConfig, BertModel, PreTrainedTokenizerFast\n"
        "class C(BertConfig): model_type = 'something-of-theirs'\n"
        "class M(BertModel): config_class = C\n"
        "class T(PreTrainedTokenizerFast): pass\n"
    )
    classes = {"AutoConfig": "theirs.C", "AutoModel": "theirs.M", "AutoTokenizer": ["theirs.T", "theirs.T"]}
    edit_json(folder / "config.json", model_type=model_type, auto_map=classes)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="T", auto_map=classes)
    monkeypatch.setattr("builtins.input", lambda *prompt: answer)
    if model_type == "bert":  # transformers has code of its own for it
        load_pretrained(folder)
        load_tokenizer(folder)
        Ranker.from_backbone(folder, text={"text_truncate": 40})
    else:
        for load in (load_pretrained, Ranker.from_backbone):
            with pytest.raises(ConfigError, match="^backbone"):
                load(folder)
    assert not witness.exists()


def test_code_that_a_ranker_names_never_runs(make_ranker, edit_json, monkeypatch, tmp_path):
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path / "model")
    witness = tmp_path / "the-code-ran"
    (tmp_path / "model" / "theirs.py").write_text(f"open({str(witness)!r}, 'w').close()\nfrom transformers import *\n")
    backbone = ranker.model.config.backbone
    auto_map = {"AutoModel": f"{tmp_path / 'model'}--theirs.BertModel"}
    edit_json(tmp_path / "model" / "polyencoder.json", backbone=backbone | {"auto_map": auto_map})
    weights = tmp_path / "model" / "polyencoder.safetensors"
    save_file(load_file(weights), weights)  # without the digest of the configuration
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    Ranker.from_pretrained(tmp_path / "model")
    assert not witness.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "config.json", "tokenizer.json"])
def test_a_pickle_in_the_folder_never_runs(copied, malicious_pickle, name, protocol):
    folder = copied("bert")
    content, witness = malicious_pickle(protocol)
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match="^backbone"):
        Ranker.from_backbone(folder)
    assert not witness.exists()


def test_a_model_type_that_transformers_does_not_know():
    with pytest.raises(ConfigError, match="knows no model type 'bort'"):
        build_backbone({"model_type": "bort"})
