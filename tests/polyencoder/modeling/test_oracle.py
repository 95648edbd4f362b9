"""Vectors of rankers are those of sentence-transformers, which saved the encoder, for each family of encoders."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from polyencoder import Ranker
from polyencoder.text.vocabulary import train_tokenizer
from tests.parameters import mostly_long

sentence_transformers = pytest.importorskip("sentence_transformers")

TABLE = Path(__file__).parents[3] / "docs" / "training" / "encoders.md"

SIZES = {"vocab_size": 320, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = SIZES | {"intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.2}
ROBERTA = BERT | {"pad_token_id": 1, "type_vocab_size": 1}
OF_MODERNBERT = {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "local_attention": 8}
DISTILBERT = {"vocab_size": 320, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
OF_GEMMA3 = {"num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3, "sliding_window": 8}

FAMILIES = {  # the configuration, and the kind of tokenizer
    "bert": (lambda: transformers.BertConfig(**BERT), "words"),
    "roberta": (lambda: transformers.RobertaConfig(**ROBERTA), "bytes"),
    "mpnet": (lambda: transformers.MPNetConfig(**ROBERTA), "words"),
    "xlm-roberta": (lambda: transformers.XLMRobertaConfig(**ROBERTA), "pieces"),
    "distilbert": (lambda: transformers.DistilBertConfig(**DISTILBERT, max_position_embeddings=64), "words"),
    "deberta-v2": (
        lambda: transformers.DebertaV2Config(
            **BERT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False
        ),
        "pieces",
    ),
    "modernbert": (lambda: transformers.ModernBertConfig(**BERT, **OF_MODERNBERT), "bytes"),
    "gemma3_text": (
        lambda: transformers.Gemma3TextConfig(**BERT, **OF_GEMMA3, use_bidirectional_attention=True),
        "pieces",
    ),
}
# Their folders on the hub name code of their own, which is not run: transformers has these encoders, too
WITH_CODE = {"nomic_bert": "words", "gte": "words", "jina_embeddings_v3": "pieces"}
FAMILIES |= {
    name: (partial(transformers.AutoConfig.for_model, name, **BERT), kind)
    for name, kind in WITH_CODE.items()
    if name in transformers.CONFIG_MAPPING
}

PROMPTS = {"query": "query: ", "document": "the passage is: "}
CONTEXTS = ["hello", "do you ski ? every winter .", "i love snow"]
CANDIDATES = ["no .", "every winter i ski , and you ?"]
TEXTS = [*CONTEXTS, *CANDIDATES, "query: the passage is: ", "Hello World order 66 hello world in winter and to you"]


def tokenizer_of(kind: str, *, pad: int) -> PreTrainedTokenizerFast:
    """Words, bytes in which a word begins with its space, or pieces, which begin with `▁` even at the start."""
    if kind == "bytes":
        tokenizer = train_tokenizer(TEXTS, vocabulary_size=320)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    else:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        mark = "▁" if kind == "pieces" else ""
        words = {f"{mark}{word}" for text in TEXTS for word in text.replace(":", " : ").split()}
        words |= {*"abcdefghijklmnopqrstuvwxyz:,.?!▁"}  # none unknown: with padding id 1, that is padding to MPNet
        ids = {word: i for i, word in enumerate([*special, *sorted(words)])}
        if kind == "pieces":
            tokenizer = Tokenizer(models.Unigram([(word, -0.1 * i) for word, i in ids.items()], unk_id=1))
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        else:
            tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special[pad], **names)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """(family) -> an encoder of sentence-transformers, and the folder it wrote."""

    def make(family: str):
        from sentence_transformers import models as modules

        configure, kind = FAMILIES[family]
        config = configure()
        folder = tmp_path_factory.mktemp(family)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            transformers.AutoModel.from_config(config).save_pretrained(folder / "encoder")
            tokenizer_of(kind, pad=config.pad_token_id or 0).save_pretrained(folder / "encoder")
            parts = [modules.Transformer(str(folder / "encoder")), modules.Pooling(16), modules.Normalize()]
            model = sentence_transformers.SentenceTransformer(modules=parts, prompts=PROMPTS, device="cpu")
        model.save(str(folder / "saved"))
        if family in WITH_CODE:
            config = json.loads((folder / "saved" / "config.json").read_text())
            config["auto_map"] = {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}
            (folder / "saved" / "config.json").write_text(json.dumps(config))
            (folder / "saved" / "modeling.py").write_text("raise AssertionError('code that comes with a model')")
        return model.eval(), folder / "saved"

    return make


def assert_same_vectors(ranker: Ranker, oracle) -> None:
    scale = ranker.model.config.output_scaling
    contexts, candidates = (
        torch.from_numpy(ranker.encode_contexts(CONTEXTS).vectors[:, 0]),
        torch.as_tensor(ranker.encode_candidates(CANDIDATES)),
    )
    expected = oracle.encode_query(CONTEXTS, convert_to_tensor=True)
    torch.testing.assert_close(contexts / scale, expected, atol=1e-5, rtol=0)
    expected = oracle.encode_document(CANDIDATES, convert_to_tensor=True)
    torch.testing.assert_close(candidates / scale, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@mostly_long("family", FAMILIES, quick=3)
def test_a_family(saved, family):
    """Vectors with prompts are the same; the documentation says how it runs; one step changes every layer."""
    oracle, folder = saved(family)
    ranker = Ranker.from_backbone(folder, share_encoders=True, device="cpu")
    assert_same_vectors(ranker, oracle)
    runs = "packed" if ranker.model.context_tower.packs else "padded"
    assert f"| `{family}` | {runs} |\n" in TABLE.read_text(encoding="utf-8")
    before = {name: weight.detach().clone() for name, weight in ranker.model.named_parameters()}
    ranker.model.train()
    optimizer = torch.optim.SGD(ranker.model.parameters(), lr=0.1)
    scores = ranker.model(ranker.text.batch_contexts(CONTEXTS[:2]), ranker.text.batch_candidates(CANDIDATES))
    nn.functional.cross_entropy(scores, torch.arange(2)).backward()
    optimizer.step()
    same = [name for name, weight in ranker.model.named_parameters() if torch.equal(weight, before[name])]
    assert not [name for name in same if "layer" in name and not name.endswith("bias")]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [None, "query"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_reranker(make_reranker, tmp_path, family, prompt):
    """sentence-transformers writes and scores it, without an activation; only a default prompt is used."""
    oracle = sentence_transformers.CrossEncoder(
        str(make_reranker(family)), prompts={"query": "do you have "}, default_prompt_name=prompt, device="cpu"
    )
    oracle.save_pretrained(str(tmp_path))
    contexts, candidates = ["any pets ?", "how are you ?"], ["i have two dogs .", "i am fine ."]
    pairs = [(context, candidate) for context in contexts for candidate in candidates]
    expected = oracle.predict(pairs, activation_fn=nn.Identity(), convert_to_tensor=True).view(2, 2)
    ranker = Ranker.load(tmp_path, device="cpu")
    torch.testing.assert_close(torch.as_tensor(ranker.score(contexts, candidates)), expected, atol=1e-5, rtol=0)
    ranked = oracle.rank(contexts[0], candidates)
    assert [hit["corpus_id"] for hit in ranked] == [hit.index for hit in ranker.rank(contexts[0], candidates)]
