"""Long texts in passages: whole sentences, all of the text, no passage longer than allowed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.checks import is_blank
from polyencoder.text.passages import split_text

SENTENCES = ["hello , how are you ?", "do you ski ?", "no , i have two dogs .", "i am fine !", "bye ."]


def count(text, passage):
    return len(text.tokenize([passage])[0])


def test_a_short_text_is_one_passage(text):
    assert split_text("hello .  bye .", text, tokens=40) == ["hello .  bye ."]


def test_passages_end_with_sentences(text):
    tokens = max(count(text, f"{first} {second}") for first in SENTENCES for second in SENTENCES)
    passages = split_text(" ".join(SENTENCES * 4), text, tokens=tokens)
    assert " ".join(passages).split() == " ".join(SENTENCES * 4).split()
    assert 1 < len(passages) < 4 * len(SENTENCES)
    assert all(passage.endswith((".", "?", "!")) for passage in passages)


def test_passages_overlap_by_whole_sentences(text):
    longest = max(count(text, sentence) for sentence in SENTENCES)
    passages = split_text("\n".join(SENTENCES * 3), text, tokens=3 * longest, overlap=longest + 2)
    for before, after in pairwise(passages):
        lines, following = before.splitlines(), after.splitlines()
        assert any(lines[-n:] == following[:n] for n in range(1, len(following)))
    assert passages[-1].splitlines()[-1] == SENTENCES[-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.sampled_from([*SENTENCES, "word", "x" * 50, "\u4f60\u597d\u3002", '"Stop!" he said.', "\n\n"]), min_size=1
    ),
    st.integers(1, 30),
    st.integers(0, 29),
)
def test_any_text(text, parts, tokens, overlap):
    whole = " ".join(parts)
    passages = split_text(whole, text, tokens=tokens, overlap=min(overlap, tokens - 1))
    letters = "".join("".join(passages).split())
    assert passages == [whole] or all(passage == passage.strip() != "" for passage in passages)
    assert overlap or letters == "".join(whole.split())
    if len(passages) > 1:  # a single character may have several tokens
        assert all(count(text, passage) <= tokens or len(passage) == 1 for passage in passages)


@pytest.mark.parametrize("space", [" ", ""])
def test_a_sentence_longer_than_a_passage_is_cut(text, space):
    passages = split_text(space.join(["word"] * 100), text, tokens=10)
    assert "".join("".join(passages).split()) == "word" * 100
    assert all(count(text, passage) <= 10 for passage in passages)
    assert space == "" or all({*passage.split()} == {"word"} for passage in passages)


@pytest.mark.parametrize("part", ["word ", "hi . ", "\u4f60", "do you ski ?\n"])
def test_a_long_text_is_tokenized_a_few_times(text, part, monkeypatch):
    characters, ids = [], text.tokenize
    monkeypatch.setattr(text, "tokenize", lambda texts, **kw: characters.extend(map(len, texts)) or ids(texts, **kw))
    passages = split_text(part * 10_000, text, tokens=100, overlap=10)
    assert sum(characters) < 6 * 10_000 * len(part)
    sizes = [count(text, passage) for passage in passages[:-1]]
    assert max(sizes) <= 100
    assert min(sizes) > 100 - count(text, part)


def test_words_of_a_cut_sentence_overlap(text):
    passages = split_text(" ".join(f"w{number}" for number in range(200)), text, tokens=40, overlap=12)
    for before, after in pairwise(passages):
        words, following = before.split(), after.split()
        assert any(words[-n:] == following[:n] for n in range(1, 13))


def test_invisible_characters_are_no_passage(text):
    passages = split_text("bye .\n" + "\u200b\n" * 1000 + "hello . " * 50, text, tokens=10)
    assert passages[0].startswith("bye .")
    assert not any(map(is_blank, passages))
