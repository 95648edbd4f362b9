"""The dictionary that the papers' authors published, as the vocabulary of a pre-training."""

from __future__ import annotations

import json

import pytest

from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.pretraining.start import build_starting_model, load_starting_tokenizer
from polyencoder.ranker import Ranker
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.vocabulary import get_turn_separator

pytestmark = pytest.mark.slow


@pytest.fixture
def published(tmp_path):
    """A tiny dictionary as the paper's is written: pieces that another follows end in `@@`, padding is at the end."""
    tokens = [
        "__null__",
        "__start__",
        "__end__",
        "__unk__",
        "__newln__",
        ".",
        "hello",
        "h@@",
        "i",
        "e@@",
        "y",
        "__silence__",
    ]
    folder = tmp_path / "published"
    folder.mkdir()
    numbered = {token: number for number, token in enumerate([*tokens, "__fp16_pad_0__"])}
    (folder / "vocab.json").write_text(json.dumps(numbered))
    merges = ["h e", "l l", "he ll", "hell o</w>"]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return folder


def test_the_papers_dictionary_is_a_vocabulary(make_settings, published, tmp_path):
    pretrained = build_starting_model(make_settings(vocabulary=str(published)))
    text = pretrained.text
    turns = ["Hello .", "hey __newln__"]
    words = [text.tokenizer.id_to_token(token_id) for token_id in text.tokenize_context(turns)]
    assert words[:5] == ["__start__", "hello</w>", ".</w>", "[NEWLINE]", "he"]
    assert text.tokenize_context(turns)[:4] == [1, 6, 5, 4]
    assert text.tokenize_context(turns)[-1] == 2
    assert text.tokenize_context(turns).count(4) == 1  # who types its name writes text
    pretrained.save(tmp_path / "encoder")
    ranker = Ranker.from_backbone(tmp_path / "encoder", device="cpu")
    assert ranker.text.tokenize_context(turns) == text.tokenize_context(turns)
    assert get_turn_separator(ranker.text.config) == "newline"


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ("{", "vocab.json: not valid JSON"),
        ('{"a": 0}', "vocab.json: its tokens must be numbered from 0, beginning with"),
    ],
)
def test_a_damaged_dictionary_of_the_papers(make_settings, published, vocabulary, message):
    (published / "vocab.json").write_text(vocabulary)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        build_starting_model(make_settings(vocabulary=str(published)))


def test_the_published_dictionary_itself(data_path):
    tokenizer, special = load_starting_tokenizer(vocabulary=str(data_path / "bpe_54940"))
    numbers = json.loads((data_path / "bpe_54940" / "vocab.json").read_bytes())
    ids = TextEncoder(tokenizer, TextConfig(**special)).tokenize_context(["Hello !", "how are you"])
    words = ["__start__", "hello", "!", "__newln__", "how", "are", "you", "__end__"]
    assert ids == [numbers[word] for word in words]
