from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import ConfigError
from polyencoder.text.subwords.tokenizer import MARKER, SubwordTokenizer, compute_fingerprint64, split_words
from tests.polyencoder.text.subwords import reference

SUBWORDS = st.lists(st.text(st.sampled_from([MARKER, *"aab .Té漢"]), min_size=1, max_size=5), unique=True, max_size=40)
# punctuation, separators, letters and symbols of many scripts near each other, which plain `st.text()` seldom gives
TEXT = st.text(
    st.sampled_from(" .,!?'\"()_-\t\n\u00a0\u2028\u3000…。aAbTzZéÉİßの漢😀5$+") | st.characters(codec="utf-8")
)


def test_ids_are_those_of_polyais_graph(stubs, stub_tokenizer):
    assert stub_tokenizer.encode_texts(stubs["texts"]) == stubs["ids"]
    assert [stub_tokenizer.tokenize(text) for text in stubs["texts"]] == stubs["tokens"]


def test_unknown_characters_have_tensorflows_buckets(stubs):
    assert {char: compute_fingerprint64(char) % 1_000 for char in stubs["buckets_of_1000"]} == stubs["buckets_of_1000"]


@given(SUBWORDS, TEXT)
def test_tokens_are_those_of_a_plain_reference(subwords, text):
    tokenizer = SubwordTokenizer(subwords, buckets=7)
    expected = reference.tokens(text, set(subwords))
    assert tokenizer.tokenize(text) == expected
    known = {subword: i for i, subword in enumerate(subwords)}
    ids = [known.get(token, len(subwords) + compute_fingerprint64(token) % 7) for token in expected]
    for _ in range(2):  # segmented, then remembered
        assert tokenizer.encode_texts([text, text]) == [ids, ids]
    assert all(i < tokenizer.get_vocab_size(with_added_tokens=False) for i in ids)


@given(st.text(st.sampled_from("ab ,.'-"), max_size=30))
def test_ids_become_the_text_again(text):
    tokenizer = SubwordTokenizer([MARKER, *"ab ,.'-", "ab", f"{MARKER}a"])
    assert tokenizer.decode(tokenizer.encode_texts([text])[0]) == text


def test_no_text_has_a_special_id(stub_tokenizer):
    special = {stub_tokenizer.token_to_id(name) for name in ("[PAD]", "[EXTRA]")}
    assert special == {119, 120}  # behind 112 subwords and 7 buckets
    assert stub_tokenizer.get_vocab_size() == 121
    assert not special & {i for ids in stub_tokenizer.encode_texts(["[PAD]", "[EXTRA] [PAD]"]) for i in ids}
    assert stub_tokenizer.decode([119, 1], skip_special_tokens=False) == "[PAD]s"


def test_it_is_the_same_when_it_has_been_written(stubs, stub_tokenizer):
    for again in (
        SubwordTokenizer.from_str(stub_tokenizer.to_str()),
        SubwordTokenizer.from_str(stub_tokenizer.to_str(pretty=True)),
        pickle.loads(pickle.dumps(stub_tokenizer)),  # noqa: S301 - our own, for processes that encode
    ):
        assert again.encode_texts(stubs["texts"]) == stubs["ids"]


def test_what_is_remembered_is_limited(monkeypatch, stubs, stub_tokenizer):
    monkeypatch.setattr("polyencoder.text.subwords.tokenizer.MEMORY", 3)
    tokenizer = SubwordTokenizer.from_str(stub_tokenizer.to_str())
    for _ in range(2):
        assert tokenizer.encode_texts(stubs["texts"]) == stubs["ids"]
    assert len(tokenizer._words) <= 3
    tokenizer.encode_texts(["x" * 10_000])
    assert max(map(len, tokenizer._words)) < 1_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a tokenizer of subwords"),
        ({"version": 2}, "version 2 of subwords, but this version of polyencoder reads 1"),
        ({"subwords": ["a", 3]}, "not a list of texts"),
        ({"subwords": ["a", "a"]}, "empty or duplicate"),
        ({"subwords": ["a", ""]}, "empty or duplicate"),
        ({"buckets": "7"}, "not a number"),
        ({"buckets": 0}, "at least 1"),
    ],
)
def test_a_file_that_is_none_of_ours_is_an_error_that_names_it(stub_tokenizer, change, message):
    text = json.dumps(json.loads(stub_tokenizer.to_str()) | change)
    with pytest.raises(ConfigError, match=f"my/tokenizer.json: .*{message}"):
        SubwordTokenizer.from_str(text, origin="my/tokenizer.json")


def test_words_have_at_most_one_way_to_be_split():
    assert split_words("a b") == ["a", "b"]
    tokenizer = SubwordTokenizer([f"{MARKER}a", "a", "aa", f"{MARKER}aaa", "b"])
    assert tokenizer.tokenize("aaaaab") == [f"{MARKER}aaa", "aa", "b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Well, the cat -  yes", ["well", ", ", "the", "cat", " -  ", "yes"]),
        ("the cat", ["the", "cat"]),  # a single space between words is dropped
        ("the  cat", ["the", "  ", "cat"]),
        (" the cat ", [" ", "the", "cat", " "]),  # at an end it is not
        (" ", [" "]),
        ("", []),
        ("ÀÉ İT", ["ÀÉ", "İt"]),  # A-Z alone become lower case
        ("a\tb\u00a0c", ["a\tb", "\u00a0", "c"]),  # a tab is no separator of Unicode's, a no-break space is
        ("$5+5", ["$5+5"]),  # symbols are no punctuation
    ],
)
def test_words(text, words):
    assert split_words(text) == words


@given(TEXT)
def test_words_are_those_of_the_graphs_expressions(text):
    assert split_words(text) == reference.words(text)
