from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.vocabulary import (
    SMALLEST_VOCABULARY,
    TRAINED_SPECIAL_TOKENS,
    get_turn_separator,
    read_special_tokens,
    separate_turns,
    train_tokenizer,
)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_commands")
def test_the_same_texts_give_the_same_vocabulary_in_every_process(tokenizer, sentences):
    code = (
        "import sys; from polyencoder.text.vocabulary import train_tokenizer; "
        "sys.stdout.write(train_tokenizer(sys.argv[1:], vocabulary_size=320).to_str())"
    )
    other = subprocess.run([sys.executable, "-c", code, *sentences], capture_output=True, text=True, check=True)
    assert other.stdout == tokenizer.to_str()
    assert train_tokenizer(iter(sentences), vocabulary_size=320).to_str() == tokenizer.to_str()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_no_text_is_unknown(tokenizer, typed):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.encode_special_tokens = True
    encoding = tokenizer.encode(typed)
    assert "[UNK]" not in encoding.tokens
    normalized = tokenizer.normalizer.normalize_str(typed)
    assert tokenizer.decode(encoding.ids).removeprefix(" ") == normalized.removeprefix(" ")


def test_lower_case_is_a_choice(sentences):
    lowered = train_tokenizer(sentences, vocabulary_size=320)
    cased = train_tokenizer(sentences, vocabulary_size=320, lower_case=False)
    assert lowered.encode("Hello").ids == lowered.encode("hello").ids
    assert cased.encode("Hello").ids != cased.encode("hello").ids


def test_size_and_special_tokens(tokenizer):
    assert tokenizer.get_vocab_size() == 320
    assert [tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")] == [0, 1, 2, 3]
    assert train_tokenizer(["hello"], vocabulary_size=1).get_vocab_size() == SMALLEST_VOCABULARY


@pytest.mark.parametrize("texts", [[], ["", "  \n"]])
def test_nothing_to_learn_from(texts):
    with pytest.raises(ConfigError, match="no text to train a vocabulary on"):
        train_tokenizer(texts)


BERT = {"start_token": "[CLS]", "end_token": "[SEP]", "separator": "[SEP]", "pad_token": "[PAD]"}
ROBERTA = {"start_token": "<s>", "end_token": "</s>", "separator": "</s>", "pad_token": "<pad>"}


@pytest.mark.parametrize(("family", "expected"), [("bert", BERT), ("roberta", ROBERTA)])
def test_special_tokens_of_each_family(make_hf_tokenizer, family, expected):
    tokenizer = make_hf_tokenizer(family)
    assert read_special_tokens(tokenizer) == expected


def test_relatives_stand_in_for_missing_special_tokens():
    tokenizer = SimpleNamespace(cls_token=None, bos_token="<s>", sep_token=None, eos_token="</s>", pad_token="<pad>")
    assert read_special_tokens(tokenizer) == ROBERTA


@pytest.mark.parametrize("missing", ["cls_token", "sep_token", "pad_token"])
def test_a_tokenizer_without_special_tokens_is_no_encoders(make_hf_tokenizer, missing):
    tokenizer = make_hf_tokenizer("bert")
    setattr(tokenizer, missing, None)
    with pytest.raises(ConfigError, match="no start, end or padding token"):
        read_special_tokens(tokenizer)


def test_a_trained_vocabulary_has_its_special_tokens(tokenizer):
    assert TRAINED_SPECIAL_TOKENS == BERT
    assert all(tokenizer.token_to_id(token) is not None for token in TRAINED_SPECIAL_TOKENS.values())


# ---- between two turns


def encoder_with(tokenizer: Tokenizer, how: str) -> TextEncoder:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    return TextEncoder(tokenizer, TextConfig(**separate_turns(tokenizer, TRAINED_SPECIAL_TOKENS, how)))


@pytest.mark.parametrize(("how", "between"), [("sep", [3]), ("newline", [320]), ("none", [])])
def test_what_stands_between_two_turns(tokenizer, how, between):
    text = encoder_with(tokenizer, how)
    hello, bye = text.tokenize(["hello", "bye"])
    assert text.tokenize_context(["hello", "bye"]) == [2, *hello, *between, *bye, 3]
    assert len(text) == 321 if how == "newline" else 320
    assert get_turn_separator(text.config) == how


def test_a_newline_token_that_a_user_types_is_text(tokenizer):
    text = encoder_with(tokenizer, "newline")
    assert 320 not in text.tokenize_context("hello [NEWLINE] bye")


def test_the_newline_of_the_papers_vocabulary_is_used(tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_tokens(["__newln__"])
    assert separate_turns(tokenizer, TRAINED_SPECIAL_TOKENS, "newline")["separator"] == "__newln__"
    assert tokenizer.get_vocab_size() == 321


def test_back_to_the_separator(tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    for how in ("newline", "none", "sep"):
        special = separate_turns(tokenizer, TRAINED_SPECIAL_TOKENS, how)
        assert separate_turns(tokenizer, special, "sep") == TRAINED_SPECIAL_TOKENS
    custom = {**TRAINED_SPECIAL_TOKENS, "separator": " || "}
    assert separate_turns(tokenizer, custom, "sep") == custom
    with pytest.raises(ConfigError, match="turn_separator is 'comma'; it must be one of sep, newline, none"):
        separate_turns(tokenizer, custom, "comma")
