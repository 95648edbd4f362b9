from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import ConfigError
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords, learn_subwords_to_size
from polyencoder.text.subwords.tokenizer import MARKER
from tests.polyencoder.text.subwords import reference

WORDS = st.dictionaries(st.text(st.sampled_from("aabbc12"), min_size=1, max_size=9), st.integers(1, 9), min_size=1)


@pytest.mark.slow
@given(WORDS, st.integers(1, 4), st.integers(1, 12), st.integers(2, 6), st.integers(0, 2))
def test_subwords_are_those_of_a_plain_reference(words, iterations, min_count, max_length, max_digits):
    words = {MARKER + word: count for word, count in words.items()}
    limits = {"iterations": iterations, "min_count": min_count, "max_length": max_length, "max_digits": max_digits}
    expected = reference.learn(words, **limits)
    if not expected:
        with pytest.raises(ConfigError, match="smaller min_count"):
            learn_subwords(words, SubwordSettings(**limits))
    else:
        assert learn_subwords(words, SubwordSettings(**limits)).subwords == expected


def test_words_are_counted_with_their_marks():
    assert count_words(["The cat, the CAT", "a cat"]) == {
        f"{MARKER}the": 2,
        f"{MARKER}cat": 3,
        f"{MARKER}, ": 1,
        f"{MARKER}a": 1,
    }


def test_limits_hold(sentences):
    words = count_words([*sentences, "call 0041446321111 or 0041446321111", "incomprehensibilities " * 3])
    subwords = learn_subwords(words, SubwordSettings(min_count=2, max_length=8, max_digits=4)).subwords
    assert max(map(len, subwords)) <= 8
    assert any("0041" in subword for subword in subwords)
    assert not any("00414" in subword for subword in subwords)
    assert "z" not in "".join(subwords)  # rare characters have buckets, not subwords


def test_the_same_words_give_the_same_vocabulary_in_any_order(sentences):
    settings = SubwordSettings(min_count=2)
    tokenizer = learn_subwords(count_words(sentences), settings)
    assert learn_subwords(count_words(sentences[::-1]), settings).subwords == tokenizer.subwords


def test_a_size_is_met_as_nearly_as_a_minimum_count_can(sentences):
    words = count_words(sentences)
    sizes = {
        count: len(learn_subwords(words, SubwordSettings(min_count=count)).subwords)
        for count in range(1, max(words.values()) + 1)
    }
    for size in (10, 25, 60, 1_000):
        tokenizer, count = learn_subwords_to_size(words, size)
        assert len(tokenizer.subwords) == sizes[count]
        assert abs(sizes[count] - size) == min(abs(length - size) for length in sizes.values())


def test_without_words_there_is_no_vocabulary():
    with pytest.raises(ConfigError, match="texts are empty"):
        learn_subwords_to_size({}, 10)
    with pytest.raises(ConfigError, match="max_length is 1; it must be at least 2"):
        SubwordSettings(max_length=1)
