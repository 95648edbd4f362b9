"""Splits long texts into passages that a model reads whole, at the ends of sentences."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING

from polyencoder.checks import is_blank

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
    the last sentences of the passage before it, or the last words of a cut sentence, up to `overlap` tokens.
    """
    parts, counts = _split_parts(text, encoder, tokens=tokens)
    if len(parts) == 1:
        return [text]
    passages, sums = [], [0, *accumulate(counts)]
    first = done = 0
    while done < len(parts):
        stop = max(done + 1, bisect_right(sums, sums[first] + tokens) - 1)
        # Together, parts may have more tokens than apart
        while (number := stop - first) > 1 and (count := _count(["".join(parts[first:stop])], encoder)[0]) > tokens:
            if stop == done + 1:
                first += 1
            else:
                stop = max(done + 1, first + number * tokens // count)
        passages.append("".join(parts[first:stop]).strip())
        first, done = bisect_left(sums, sums[stop] - overlap, first + 1, stop) if overlap else stop, stop
    return [passage for passage in passages if not is_blank(passage)]


def _split_parts(text: str, encoder: TextEncoder, *, tokens: int) -> tuple[list[str], list[int]]:
    """The parts of a text with at most `tokens` tokens, and how many they have; joined they are the text.

    They are the text itself, or its sentences; a longer sentence is split into words, a longer word into equal parts.
    """
    parts, counts = [text], dict[str, int]()
    for end in chain((_SENTENCE_END, _WORD_END), repeat(None)):
        new = list({*parts} - counts.keys())
        counts.update(zip(new, _count(new, encoder), strict=True))
        if all(counts[part] <= tokens or len(part) == 1 for part in parts):
            break
        cut = {part: _cut(part, end, number=2 * counts[part] // tokens) for part in counts if counts[part] > tokens}
        parts = [piece for part in parts for piece in cut.get(part, [part])]
    return parts, [counts[part] for part in parts]


def _cut(text: str, end: re.Pattern[str] | None, *, number: int) -> list[str]:
    """The pieces of a text that the pattern ends, or about this number of equal length."""
    ends = range(0, len(text), max(1, len(text) // number)) if end is None else (m.end() for m in end.finditer(text))
    return [text[start:stop] for start, stop in pairwise([0, *ends, len(text)]) if start < stop]


def _count(texts: Sequence[str], encoder: TextEncoder) -> list[int]:
    return [len(ids) for ids in encoder.tokenize([text.strip() for text in texts], remember=False)]
