"""Static encoders: vectors of sentence-transformers' StaticEmbedding, training, export, and what needs layers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from polyencoder import ConfigError, Ranker
from polyencoder.modeling.freezing import freeze
from polyencoder.modeling.loading import load_tokenizer
from polyencoder.pretraining.start import starting_model
from polyencoder.settings.pretrain import PretrainingSettings

sentence_transformers = pytest.importorskip("sentence_transformers")
from tests.polyencoder.modeling.test_oracle import (  # noqa: E402  (skipped without sentence-transformers)
    CANDIDATES,
    CONTEXTS,
    PROMPTS,
    assert_same_vectors,
    tokenizer_of,
)


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
    ids = [i for one in ("query: hello", "i love snow") for i in tokenizer.encode(one, add_special_tokens=False).ids]
    assert text.context_ids(turns) == ids
    plain = tokenizer.encode("the passage is: i ski", add_special_tokens=False).ids
    assert text.candidate_ids(["i ski"]) == [plain]


def test_texts_without_tokens_and_padding(saved):
    _, folder = saved(prompts=False)
    ranker = Ranker.from_backbone(folder, "poly", n_codes=2, device="cpu")
    with torch.no_grad():
        vectors = ranker.model.encode_context(ranker.text.contexts([[" "], ["hello"]])).vectors
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
    scores = ranker.model(ranker.text.contexts(CONTEXTS[:2]), ranker.text.candidates(CANDIDATES))
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
    expected, found = (
        [(one.text, pytest.approx(one.score, abs=1e-4)) for one in ranker.rank(CONTEXTS, CANDIDATES)],
        [(one.text, one.score) for one in onnx.rank(CONTEXTS, CANDIDATES)],
    )
    assert found == expected


def test_what_needs_layers_is_refused(saved, tmp_path):
    _, folder = saved(prompts=False)
    with pytest.raises(ConfigError, match="without the attention that a cross-encoder needs"):
        Ranker.from_backbone(folder, "cross", device="cpu")
    with pytest.raises(ConfigError, match="layers of a static_embedding model cannot be trained separately"):
        freeze(Ranker.from_backbone(folder, "bi", device="cpu").model, fine_tuned="top_layer")
    with pytest.raises(ConfigError, match="lora adapts linear layers, and this model's encoder has none"):
        Ranker.from_backbone(folder, "bi", device="cpu").model.add_adapters(rank=2)
    with pytest.raises(ConfigError, match="has no layers to pre-train"):
        starting_model(PretrainingSettings.of(corpus=["a.txt"], out=str(tmp_path), backbone=str(folder), max_steps=1))


def test_a_folder_of_model2vec(tmp_path):
    """Its names of tensors, rows that tokens share, a weight for each token, and 16 bits."""
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
        (lambda place: (place / "model.safetensors").unlink(), "model.safetensors"),
        (lambda place: (place / "model.safetensors").write_bytes(b"no"), "safetensors|header|HeaderTooSmall|Error"),
        (lambda place: (place / "tokenizer.json").write_text("{}"), "Model missing"),
    ],
)
def test_a_damaged_folder(saved, change, message):
    _, folder = saved()
    place = next(folder.rglob("model.safetensors")).parent
    change(place)
    with pytest.raises(ConfigError, match=f"{re.escape(str(folder))}.*({message})") as raised:
        Ranker.from_backbone(folder, "bi", device="cpu")
    assert "\n" not in str(raised.value)
