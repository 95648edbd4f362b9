"""Encoders by folder or hub id, and what is refused."""

from __future__ import annotations

import json
import logging
import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import sentence_transformers
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoTokenizer

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.loading import build_backbone, load_pretrained, load_tokenizer
from polyencoder.modeling.trainable import freeze
from polyencoder.pretraining.start import build_starting_model
from polyencoder.ranker import Ranker
from polyencoder.settings.pretrain import PretrainingSettings
from tests.encoders import ENCODERS
from tests.polyencoder.modeling.test_oracle import CANDIDATES, CONTEXTS, PROMPTS, assert_same_vectors, tokenizer_of


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "prefix"),
    [("bert", "module."), ("bert", "_orig_mod."), ("bert", "_orig_mod.module."), ("bert", "0.auto_model.")]
    + [(kind, "module._orig_mod.") for kind in ENCODERS],
)
def test_prefixes_of_wrapped_models_are_taken_off(copied, kind, prefix):
    """DistributedDataParallel, torch.compile and sentence-transformers add such prefixes."""
    path = copied(kind) / "model.safetensors"
    expected = load_pretrained(path.parent).state_dict()
    save_file({f"{prefix}{name}": tensor for name, tensor in load_file(path).items()}, path)
    actual = load_pretrained(path.parent).state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


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
    """transformers reports that it does not know a reranker's head, and that its pooler is to be trained."""
    folder, log = make_reranker("roberta"), logging.getLogger("transformers")
    level = log.level
    capfd.readouterr()
    load_pretrained(folder)
    assert caplog.text == capfd.readouterr().err == ""
    assert log.level == level


@pytest.mark.parametrize("model_type", ["bert", "something-of-theirs"])
def test_code_that_comes_with_a_model_never_runs(copied, edit_json, monkeypatch, tmp_path, model_type):
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
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    if model_type == "bert":  # transformers has code of its own for it
        load_pretrained(folder)
        load_tokenizer(folder)
        Ranker.from_backbone(folder, text={"text_truncate": 40})
    else:
        for load in (load_pretrained, Ranker.from_backbone):
            with pytest.raises(ConfigError, match="^backbone .*which is never run"):
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


@pytest.fixture
def saved(tmp_path):
    """(*modules, kind="words", prompts=True) -> sentence-transformers' encoder and the folder it wrote."""

    def make(*modules: nn.Module, kind: str = "words", prompts: bool = True):
        from sentence_transformers.sentence_transformer.modules import StaticEmbedding

        tokenizer = tokenizer_of(kind, pad=0)
        table = torch.randn(len(tokenizer), 16, generator=torch.Generator().manual_seed(0))
        static = StaticEmbedding(tokenizer, embedding_weights=table)
        model = sentence_transformers.SentenceTransformer(
            modules=[static, *modules], prompts=PROMPTS if prompts else None, device="cpu"
        )
        model.save(str(tmp_path / "saved"))
        return model.eval(), tmp_path / "saved"

    return make


@pytest.mark.parametrize("kind", ["words", "bytes", "pieces"])
def test_vectors_are_those_of_sentence_transformers(saved, tmp_path, kind):
    from sentence_transformers.sentence_transformer.modules import Normalize

    oracle, folder = saved(Normalize(), kind=kind)
    ranker = Ranker.from_backbone(folder, "bi", device="cpu")
    assert_same_vectors(ranker, oracle)
    ranker.save_pretrained(tmp_path / "ranker")
    assert_same_vectors(Ranker.from_pretrained(tmp_path / "ranker", device="cpu"), oracle)


def test_turns_and_prompts_are_joined_without_special_tokens(saved):
    _, folder = saved()
    text = Ranker.from_backbone(folder, "bi", device="cpu").text
    tokenizer, _ = load_tokenizer(folder)
    turns = ["hello", "i love snow"]
    ids = [i for turn in ("query: hello", "i love snow") for i in tokenizer.encode(turn, add_special_tokens=False).ids]
    assert text.tokenize_context(turns) == ids
    plain = tokenizer.encode("the passage is: i ski", add_special_tokens=False).ids
    assert text.tokenize_candidates(["i ski"]) == [plain]


def test_texts_without_tokens_and_padding(saved):
    _, folder = saved(prompts=False)
    ranker = Ranker.from_backbone(folder, "poly", n_codes=2, device="cpu")
    with torch.no_grad():
        vectors = ranker.model.encode_context(ranker.text.batch_contexts([[" "], ["hello"]])).vectors
    assert torch.isfinite(vectors).all()
    alone = ranker.encode_contexts(["hello"]).vectors
    together = ranker.encode_contexts(["hello", CONTEXTS[1]]).vectors[:1]
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ["bi", "poly", "late"])
def test_one_step_trains_the_table(saved, architecture):
    """With the setting that freezes a transformer's embeddings."""
    _, folder = saved()
    ranker = Ranker.from_backbone(folder, architecture, device="cpu")
    freeze(ranker.model, fine_tuned="all_encoder_layers")
    before = {name: weight.detach().clone() for name, weight in ranker.model.named_parameters()}
    ranker.model.train()
    optimizer = torch.optim.SGD(ranker.model.parameters(), lr=0.1)
    scores = ranker.model(ranker.text.batch_contexts(CONTEXTS[:2]), ranker.text.batch_candidates(CANDIDATES))
    nn.functional.cross_entropy(scores, torch.arange(2)).backward()
    optimizer.step()
    changed = [name for name, weight in ranker.model.named_parameters() if not torch.equal(weight, before[name])]
    assert sum("embeddings" in name for name in changed) == 2, "one for contexts, one for candidates"


@pytest.mark.slow
def test_it_exports_to_onnx(saved, tmp_path):
    from polyencoder.export.onnx import export_onnx

    _, folder = saved()
    ranker = Ranker.from_backbone(folder, "poly", n_codes=4, device="cpu")
    ranker.save_pretrained(tmp_path / "ranker")
    export_onnx(ranker, tmp_path / "ranker")
    onnx = Ranker.from_pretrained(tmp_path / "ranker", backend="onnx")
    expected, actual = (
        [(hit.text, pytest.approx(hit.score, abs=1e-4)) for hit in ranker.rank(CONTEXTS, CANDIDATES)],
        [(hit.text, hit.score) for hit in onnx.rank(CONTEXTS, CANDIDATES)],
    )
    assert actual == expected


def test_what_needs_layers_is_refused(saved, tmp_path):
    _, folder = saved(prompts=False)
    with pytest.raises(ConfigError, match="without the attention that a cross-encoder needs"):
        Ranker.from_backbone(folder, "cross", device="cpu")
    with pytest.raises(ConfigError, match="layers of a static_embedding model cannot be trained separately"):
        freeze(Ranker.from_backbone(folder, "bi", device="cpu").model, fine_tuned="top_layer")
    with pytest.raises(ConfigError, match="lora adapts linear layers, and this model's encoder has none"):
        Ranker.from_backbone(folder, "bi", device="cpu").model.add_adapters(rank=2)
    with pytest.raises(ConfigError, match="has no layers to pre-train"):
        build_starting_model(
            PretrainingSettings.of(corpus=["a.txt"], out=str(tmp_path), backbone=str(folder), max_steps=1)
        )


def test_a_folder_of_model2vec(tmp_path):
    """model2vec has other names of tensors, rows that tokens share, a weight for each token, and 16 bits."""
    tokenizer = tokenizer_of("words", pad=0)
    generator = torch.Generator().manual_seed(1)
    size = len(tokenizer)
    tensors = {
        "embeddings": torch.randn(7, 8, generator=generator).half(),
        "mapping": torch.randint(0, 7, (size,), generator=generator),
        "weights": torch.rand(size, generator=generator),
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "model2vec", "normalize": true}')
    kinds = (("StaticEmbedding", "."), ("Normalize", "1_Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    oracle = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    assert_same_vectors(Ranker.from_backbone(tmp_path, "bi", device="cpu"), oracle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors"),
        (lambda path: (path / "model.safetensors").write_bytes(b"no"), "safetensors|header|HeaderTooSmall|Error"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "Model missing"),
    ],
)
def test_a_damaged_folder(saved, change, message):
    _, folder = saved()
    inner = next(folder.rglob("model.safetensors")).parent
    change(inner)
    with pytest.raises(ConfigError, match=f"{re.escape(str(folder))}.*({message})") as raised:
        Ranker.from_backbone(folder, "bi", device="cpu")
    assert "\n" not in str(raised.value)
