"""The words of texts and of queries, for searches by words: the same for all engines that index them here.

A word is a run of letters, digits and their marks, without case and accents. Chinese and Japanese have no spaces: each
of their characters is a word, and a query asks for pairs of neighbours, as Lucene's `CJKBigramFilter` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from unicodedata import normalize

import regex

from polyencoder.text.context import PERSONA_MARK

_CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
_WORDS = regex.compile(rf"{_CHARACTER}|(?:(?!{_CHARACTER})[\p{{L}}\p{{N}}\p{{M}}])+")
_IS_CHARACTER = regex.compile(_CHARACTER).fullmatch
_ACCENTS = regex.compile("[\u0300-\u036f]")


def split_into_words(text: str) -> list[str]:
    """The words of a text, in its order: letters, digits and marks, folded."""
    return _WORDS.findall(_fold(text))


def _fold(text: str) -> str:
    """The text without case, accents and variants of characters, such as ligatures."""
    if text.isascii():
        return text.lower()
    plain = normalize("NFKD", normalize("NFKD", text).casefold())
    return normalize("NFC", _ACCENTS.sub("", plain))


def split_query_words(turns: Sequence[str]) -> list[str]:
    """The words that a context is searched by, each once; two with a space between them must be neighbours.

    The mark of a persona line, which nobody said, is left out.

    Examples:
        >>> split_query_words(["Where is order 4711? 北京大"])
        ['where', 'is', 'order', '4711', '北 京', '京 大']
    """
    terms: dict[str, None] = {}
    for turn in turns:
        spoken = split_into_words("\n".join(PERSONA_MARK.sub("", line) for line in turn.split("\n")))
        for is_character, run in groupby(spoken, key=lambda word: _IS_CHARACTER(word) is not None):
            words = [*run]
            pairs = is_character and len(words) > 1
            terms |= dict.fromkeys(map(" ".join, pairwise(words)) if pairs else words)
    return [*terms]
