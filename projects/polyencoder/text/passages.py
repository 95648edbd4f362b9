"""Splits long texts into passages that a model reads whole, at the ends of sentences."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyencoder.text.encoder import TextEncoder

# After a full stop and what closes it, white space; the full stops of Chinese and Japanese need none
_SENTENCE_END = re.compile(
    "[.!?\u2026][\"'\u201d\u2019)\\]]*\\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d\u2019]*\\s*|\\n+"
)
_WORD_END = re.compile(r"\s+")


def split_text(text: str, encoder: TextEncoder, *, tokens: int, overlap: int = 0) -> list[str]:
    """Splits a text into passages of at most `tokens` tokens, special tokens not counted.

    A passage has whole sentences; only a sentence that is longer itself is cut, between words. Each passage begins with
    the last sentences of the one before it, up to `overlap` tokens.
    """
    if _count(text, encoder) <= tokens:
        return [text]
    parts = [part for sentence in _pieces(text, _SENTENCE_END) for part in _fitting(sentence, encoder, tokens=tokens)]
    passages, first = [], 0
    for stop in range(1, len(parts) + 1):
        if stop < len(parts) and _count("".join(parts[first : stop + 1]), encoder) <= tokens:
            continue
        passages.append("".join(parts[first:stop]).strip())
        first = stop
        while (
            first > 0
            and stop < len(parts)
            and _count("".join(parts[first - 1 : stop]), encoder) <= overlap
            and _count("".join(parts[first - 1 : stop + 1]), encoder) <= tokens
        ):
            first -= 1
    return [passage for passage in passages if passage]


def _count(text: str, encoder: TextEncoder) -> int:
    return len(encoder.ids([text.strip()], remember=False)[0])


def _pieces(text: str, end: re.Pattern[str]) -> list[str]:
    """The pieces of a text that the pattern ends; joined they are the text."""
    ends = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in pairwise(ends) if start < stop]


def _fitting(text: str, encoder: TextEncoder, *, tokens: int) -> list[str]:
    """A text, in halves as long as it has too many tokens: between words, or within a word that is too long."""
    if _count(text, encoder) <= tokens or len(text) < 2:
        return [text]
    words = _pieces(text, _WORD_END)
    if len(words) > 1:
        halves = ["".join(words[: len(words) // 2]), "".join(words[len(words) // 2 :])]
    else:
        halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    return [part for half in halves for part in _fitting(half, encoder, tokens=tokens)]
