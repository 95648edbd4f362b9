from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
import torch
from transformers import AutoModel

from polyencoder.errors import ConfigError
from polyencoder.modeling import attention
from polyencoder.modeling.backbone import (
    Backbone,
    backbone_config,
    build_backbone,
    load_pretrained,
    load_tokenizer,
    max_length,
    scratch_config,
)
from polyencoder.ranker import Ranker
from polyencoder.text import TokenBatch, pad
from polyencoder.text.lengths import length_groups

ENCODERS = ["bert", "roberta", "modernbert", "distilbert"]


@pytest.fixture
def copied(backbone_folder, tmp_path):
    """(kind) -> a copy of the tiny model's folder that a test may damage."""
    return lambda kind: shutil.copytree(backbone_folder(kind), tmp_path / kind)


@pytest.fixture
def batch(padded):
    """Two sequences that every tiny model can read, padded with the model's own padding."""
    return lambda backbone: padded([[2, 9, 8, 7, 3], [2, 6, 3]], pad_id=backbone.model.config.pad_token_id)


@pytest.mark.parametrize("kind", ENCODERS)
class TestEncoders:
    def test_outputs_are_the_models_own(self, backbone_folder, batch, kind):
        backbone = load_pretrained(backbone_folder(kind)).eval()
        tokens = batch(backbone)
        theirs = AutoModel.from_pretrained(backbone_folder(kind), attn_implementation="eager").eval()
        expected = theirs(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        outputs = backbone(tokens)
        assert outputs.shape == (2, 5, backbone.dim) == (2, 5, 16)
        torch.testing.assert_close(outputs[tokens.mask], expected[tokens.mask], rtol=1e-4, atol=1e-5)

    def test_attention_is_fused_and_nothing_is_left_unused(self, backbone_folder, batch, kind):
        backbone = load_pretrained(backbone_folder(kind))
        assert backbone.model.config._attn_implementation == attention.NAME
        assert getattr(backbone.model, "pooler", None) is None
        assert not any("pooler" in name for name in backbone.state_dict())
        assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
        backbone(batch(backbone)).sum().backward()
        assert all(parameter.grad is not None for parameter in backbone.parameters())

    def test_its_configuration_rebuilds_it(self, backbone_folder, batch, kind):
        """Through JSON, as a checkpoint keeps it."""
        backbone = load_pretrained(backbone_folder(kind)).eval()
        config = backbone_config(backbone.model)
        assert json.loads(json.dumps(config)) == config
        again = build_backbone(config)
        assert backbone_config(again.model) == config
        again.load_state_dict(backbone.state_dict())
        assert torch.equal(again.eval()(batch(backbone)), backbone(batch(backbone)))

    def test_the_configuration_does_not_say_where_it_came_from(self, backbone_folder, kind):
        config = backbone_config(load_pretrained(backbone_folder(kind)).model)
        assert str(backbone_folder(kind)) not in json.dumps(config)
        assert not {"_name_or_path", "transformers_version"} & set(config)

    def test_resizing_keeps_the_embeddings(self, backbone_folder, batch, kind):
        backbone = load_pretrained(backbone_folder(kind)).eval()
        before, outputs = backbone.model.get_input_embeddings().weight.clone(), backbone(batch(backbone))
        backbone.resize(70)
        after = backbone.model.get_input_embeddings().weight
        assert after.shape == (70, 16)
        assert torch.equal(after[:64], before)
        assert torch.equal(backbone(batch(backbone)), outputs)
        assert backbone_config(backbone.model)["vocab_size"] == 70
        backbone.resize(10)  # never smaller
        assert backbone.model.get_input_embeddings().weight.shape == (70, 16)

    def test_layers_and_embeddings(self, backbone_folder, kind):
        backbone = load_pretrained(backbone_folder(kind))
        assert len(backbone.layers()) == 2
        embeddings = {id(p) for p in backbone.embeddings().parameters()}
        layers = {id(p) for p in backbone.layers().parameters()}
        assert id(backbone.model.get_input_embeddings().weight) in embeddings
        assert not embeddings & layers

    def test_the_tokenizer_names_its_special_tokens(self, backbone_folder, kind):
        tokenizer, special = load_tokenizer(backbone_folder(kind))
        expected = ["<s>", "</s>", "</s>", "<pad>"] if kind == "roberta" else ["[CLS]", "[SEP]", "[SEP]", "[PAD]"]
        assert [special[f] for f in ("start_token", "end_token", "separator", "pad_token")] == expected
        assert tokenizer.encode("two dogs").tokens == ["two", "dogs"]


@pytest.mark.parametrize(("kind", "limit"), [("bert", 40), ("roberta", 38), ("distilbert", 40)])
def test_max_length_is_the_longest_that_works(backbone_folder, padded, kind, limit):
    backbone = load_pretrained(backbone_folder(kind))
    assert max_length(backbone_config(backbone.model)) == limit
    assert backbone(padded([[2] * limit], pad_id=1)).shape == (1, limit, 16)
    with pytest.raises((IndexError, RuntimeError)):
        backbone(padded([[2] * (limit + 1)], pad_id=1))


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("cost", [0, 3, 10_000])
@pytest.mark.parametrize("lengths", [[9, 2, 1, 6, 3, 9, 4], [1, 1, 1, 1, 1, 1, 20], [5, 5, 5], [4]])
def test_what_goes_through_together_changes_nothing(
    monkeypatch, backbone_folder, make_tokens, kind, lengths, cost, packs
):
    """One row of tokens or groups of like length: outputs, gradients, segments are those of each sequence alone."""
    monkeypatch.setattr(Backbone, "packs", packs)
    monkeypatch.setattr("polyencoder.modeling.packing.BLOCK", cost)
    monkeypatch.setattr("polyencoder.modeling.backbone.length_groups", partial(length_groups, pass_cost=cost))
    backbone = load_pretrained(backbone_folder(kind)).eval()
    sequences = [[token % 60 + 4 for token in row] for row in make_tokens(lengths)]
    segments = [[place % 2 for place in range(length)] for length in lengths]
    tokens = pad(sequences, pad_id=backbone.model.config.pad_token_id, segments=segments)

    def sums_and_gradients(outputs):
        weights = torch.arange(1.0, 17.0)
        sums = torch.stack([(row @ weights).square().sum() for row in outputs])
        return sums, torch.autograd.grad(sums.log().sum(), list(backbone.parameters()), allow_unused=True)

    outputs = backbone(tokens)
    assert outputs.shape == (len(lengths), max(lengths), 16)
    with torch.no_grad():
        torch.testing.assert_close(backbone(tokens)[tokens.mask], outputs[tokens.mask], rtol=1e-4, atol=1e-5)
    together = sums_and_gradients([outputs[i, :length] for i, length in enumerate(lengths)])
    alone = sums_and_gradients(
        [backbone(pad([ids], pad_id=0, segments=[s]))[0] for ids, s in zip(sequences, segments, strict=True)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_padding_does_not_go_through_the_model(backbone_folder, padded):
    backbone = load_pretrained(backbone_folder("bert"))
    assert backbone.packs
    shapes = []
    backbone.model.embeddings.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    outputs = backbone(padded([[2] * 30, [2] * 3, [2] * 4, [2] * 29]))
    assert outputs.shape == (4, 30, 16)
    assert shapes == [(1, 30 + 30 + 4 + 4, 16)]


def test_a_model_without_positions_has_no_limit():
    assert max_length({"model_type": "something"}) is None


def test_segments_reach_the_models_that_have_them(backbone_folder):
    ids, mask = torch.tensor([[2, 9, 8, 3]]), torch.ones(1, 4, dtype=torch.bool)
    segments = torch.tensor([[0, 0, 1, 1]])
    for kind in ENCODERS:
        backbone = load_pretrained(backbone_folder(kind)).eval()
        same = torch.equal(backbone(TokenBatch(ids, mask, segments)), backbone(TokenBatch(ids, mask)))
        assert same == (kind != "bert")


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
    edit_json(tmp_path / "model" / "config.json", backbone=backbone | {"auto_map": auto_map})
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


def test_from_scratch():
    config = scratch_config(vocabulary_size=50, dim=24, n_layers=3, n_heads=4, ffn_dim=32, n_positions=20, pad_id=7)
    backbone = build_backbone(config)
    assert isinstance(backbone, Backbone)
    assert backbone.dim == 24
    assert len(backbone.layers()) == 3
    assert max_length(config) == 20
    assert backbone.model.get_input_embeddings().padding_idx == 7
    assert backbone.takes_segments
    assert json.loads(json.dumps(config)) == config
    assert backbone_config(backbone.model) == config


def test_dimensions_that_do_not_divide():
    with pytest.raises(ConfigError, match="dim is 10, which is not a multiple of n_heads, 4"):
        scratch_config(vocabulary_size=50, dim=10, n_layers=1, n_heads=4, ffn_dim=32, n_positions=20)


def test_a_model_type_that_transformers_does_not_know():
    with pytest.raises(ConfigError, match="knows no model type 'bort'"):
        build_backbone({"model_type": "bort"})
