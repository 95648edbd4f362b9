"""ConveRT's subwords: words split at punctuation and separators, greedy longest prefixes, hashed unknown characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import lazy_names

if TYPE_CHECKING:
    from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords, learn_subwords_of_size
    from polyencoder.text.subwords.tokenizer import MARKER, SubwordTokenizer, is_subword_tokenizer, split_words

__all__ = [
    "MARKER",
    "SubwordSettings",
    "SubwordTokenizer",
    "count_words",
    "is_subword_tokenizer",
    "learn_subwords",
    "learn_subwords_of_size",
    "split_words",
]

__getattr__, __dir__ = lazy_names(__name__)
