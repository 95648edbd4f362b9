"""Trains a subword vocabulary on word counts, like tensor2tensor's `SubwordTextEncoder`.

Source: `build_from_token_counts` of Vaswani et al., "Tensor2Tensor for neural machine translation" (2018), as note 4 of
ConveRT uses it: 4 iterations, subwords that occur at least 250 times, of at most 20 characters and at most 4 digits in
a row. Rarer characters are left out too, as unknown characters have their own ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated

import regex
from pydantic import Field

from polyencoder.errors import ConfigError
from polyencoder.settings.base import Settings, settings
from polyencoder.text.subwords.tokenizer import BUCKETS, MARKER, SubwordTokenizer, split_words
from polyencoder.validation import Count


@settings(panel="ConveRT's subwords (type convert)")
class SubwordSettings(Settings):
    """Settings of a vocabulary's training; the defaults are the paper's (note 4)."""

    iterations: Count = 4
    """Passes; each segments the words with the vocabulary of the previous pass."""
    min_count: Count = 250
    """Minimum count of a subword."""
    max_length: Annotated[int, Field(ge=2)] = 20
    """Maximum characters of a subword, its mark included."""
    max_digits: Annotated[int, Field(ge=0)] = 4
    """Maximum digits in a row."""
    buckets: Count = BUCKETS
    """Ids for unknown characters."""


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Counts words, with their marks."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    return Counter({MARKER + word: count for word, count in counts.items()})


def learn_subwords(words: Mapping[str, int], settings: SubwordSettings | None = None) -> SubwordTokenizer:
    """Trains a vocabulary on word counts, most frequent subwords first. ConfigError: none occurs often enough."""
    settings = settings or SubwordSettings()
    digits = regex.compile(rf"\d{{{settings.max_digits + 1}}}")
    tokenizer = SubwordTokenizer([], buckets=settings.buckets)  # which takes words for their characters
    for _ in range(settings.iterations):
        counts = _count_starts(words, tokenizer, max_length=settings.max_length)
        subwords = _select_most_frequent(
            counts, min_count=settings.min_count, may_be=lambda piece: not digits.search(piece)
        )
        if not subwords:
            raise ConfigError(
                f"no subword occurs {settings.min_count} times; give more text, or a smaller min_count",
                argument="min_count",
            )
        tokenizer = SubwordTokenizer(subwords, buckets=settings.buckets)
    return tokenizer


def learn_subwords_to_size(
    words: Mapping[str, int],
    size: int,
    settings: SubwordSettings | None = None,
    *,
    least_count: int = 1,
    on_progress: Callable[[int, int], object] | None = None,
) -> tuple[SubwordTokenizer, int]:
    """Trains the vocabulary nearest to `size` subwords, by bisection; returns it and its minimum count.

    `on_progress` is called with each minimum count that was tried, and the number of subwords that it gave.
    """
    if size < 1:
        raise ConfigError(f"size is {size}; a vocabulary has at least 1 subword", argument="size")
    settings = settings or SubwordSettings()
    high = max(words.values(), default=1)
    low = min(least_count, high)  # fewer subwords the larger the count
    best: tuple[int, int, SubwordTokenizer] | None = None
    while low <= high:
        # nearer to the lower: sizes fall with the logarithm of the count, more or less
        count = max(low, min(high, round((low * high) ** 0.5)))
        try:
            tokenizer = learn_subwords(words, replace(settings, min_count=count))
        except ConfigError:
            high = count - 1
            continue
        num_subwords = len(tokenizer.subwords)
        if on_progress is not None:
            on_progress(count, num_subwords)
        if best is None or abs(num_subwords - size) < best[0]:
            best = abs(num_subwords - size), count, tokenizer
        if num_subwords == size:
            break
        low, high = (count + 1, high) if num_subwords > size else (low, count - 1)
    if best is None:
        raise ConfigError("no words to train a vocabulary on: the texts are empty")
    return best[2], best[1]


def _count_starts(words: Mapping[str, int], tokenizer: SubwordTokenizer, *, max_length: int) -> dict[str, int]:
    """Counts each text that begins at a subword's start within words."""
    counts: dict[str, int] = {}
    get = counts.get
    for word, count in words.items():
        start = 0
        for piece in tokenizer.split_word(word):
            for end in range(start + 1, min(len(word), start + max_length) + 1):
                subword = word[start:end]
                counts[subword] = get(subword, 0) + count
            start += len(piece)
    return counts


def _select_most_frequent(counts: dict[str, int], *, min_count: int, may_be: Callable[[str], bool]) -> list[str]:
    """The frequent subwords, longest first: a subword's count is subtracted from its prefixes' counts."""
    by_length: dict[int, list[str]] = {}
    for subword, count in counts.items():
        if count >= min_count and may_be(subword):
            by_length.setdefault(len(subword), []).append(subword)
    chosen = []
    for length in sorted(by_length, reverse=True):
        for subword in by_length[length]:
            count = counts[subword]
            if count < min_count:
                continue
            chosen.append((-count, subword))
            for end in range(1, length):
                counts[subword[:end]] -= count
    return [subword for _, subword in sorted(chosen)]
