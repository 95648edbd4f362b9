from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.text.subwords import split_words
from tests.polyencoder.text.subwords import reference

# punctuation, separators, letters and symbols of many scripts near each other, which plain `st.text()` seldom gives
TEXT = st.text(
    st.sampled_from(" .,!?'\"()_-\t\n\u00a0\u2028\u3000…。aAbTzZéÉİßの漢😀5$+") | st.characters(codec="utf-8")
)


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
