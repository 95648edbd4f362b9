"""Tiny encoders and data for the benchmarks' tests."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from polyencoder.text.vocabulary import train_tokenizer


@pytest.fixture
def forked(forked_commands, monkeypatch):
    """The processes of a benchmark are forked, with their imports done: see tests/forked.py."""
    from tests.forked import forkserver

    contexts = {"spawn": forkserver()}
    get_context = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: contexts.get(method) or get_context(method))


@pytest.fixture(scope="session")
def bert(tmp_path_factory, sentences):
    """A BERT so small that it learns in a moment."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer(sentences, vocabulary_size=300)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def convai2(tmp_path_factory) -> Path:
    """ParlAI's data folder with ConvAI2 in miniature: 20 candidates for each validation example."""
    path = tmp_path_factory.mktemp("data")
    folder = path / "ConvAI2"
    folder.mkdir()
    turns = [(f"question {n} , how are you ?", f"reply {n} , i am fine .") for n in range(48)]
    train = [f"{n % 4 + 1} {text}\t{label}" for n, (text, label) in enumerate(turns)]
    labels = [label for _, label in turns[:20]]
    valid = [f"{n % 4 + 1} {text}\t{label}\t\t{'|'.join(labels)}" for n, (text, label) in enumerate(turns[:20])]
    (folder / "train_self_original.txt").write_text("\n".join(train) + "\n", encoding="utf-8")
    (folder / "valid_self_original.txt").write_text("\n".join(valid) + "\n", encoding="utf-8")
    return path
