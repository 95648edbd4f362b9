"""The words of texts and queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.index.words import split_into_words, split_query_words
from polyencoder.text.dialogue import to_turns


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Order #4711 was sent, wasn't it?", ["order", "4711", "was", "sent", "wasn", "t", "it"]),
        ("snake_case e-mail", ["snake", "case", "e", "mail"]),
        ("\ufb01ne \uff14\uff17\uff11", ["fine", "471"]),  # ligatures and wide digits: NFKC
        ("cafe\u0301 हिन्दी", ["cafe", "हिन्दी"]),  # marks belong to words, accents do not
        ("STRASSE Straße \U0001d400 Ёлка", ["strasse", "strasse", "a", "елка"]),
        ("我住在北京。abcサッカー", ["我", "住", "在", "北", "京", "abc", "サ", "ッ", "カ", "ー"]),
        ("한국어 좋아", ["한국어", "좋아"]),
        ("🙂 !? \x00 _", []),
    ],
)
def test_words(text, words):
    assert split_into_words(text) == words


def test_the_words_of_a_context_occur_once_and_characters_in_pairs():
    assert split_query_words(["do you ski ?", "do I ?"]) == ["do", "you", "ski", "i"]
    assert split_query_words(["去北京大 ok 京", "北京"]) == ["去 北", "北 京", "京 大", "ok", "京"]
    assert split_query_words(["?", ""]) == []


def test_the_mark_of_a_persona_is_no_word():
    """Otherwise each chat with a system message would search for `your` and `persona`."""
    assert split_query_words(
        [*to_turns("it", [{"role": "system", "content": "Be kind."}], system="persona"), "Is it?"]
    ) == [
        "be",
        "kind",
        "is",
        "it",
    ]
    turn = "__p1__ your persona: i ski .\nPartner's persona: i run\nwhat is your persona: x"
    assert split_query_words([turn]) == ["i", "ski", "run", "what", "is", "your", "persona", "x"]


@given(st.lists(st.text()))
def test_a_query_has_only_words_and_single_spaces(turns):
    for word in split_query_words(turns):
        assert word.split(" ") == split_into_words(word)
