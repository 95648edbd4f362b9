"""ConveRT's subwords: words split at punctuation and separators, greedy longest prefixes, hashed unknown characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords, learn_subwords_to_size
    from polyencoder.text.subwords.tokenizer import MARKER, SubwordTokenizer, is_subword_tokenizer, split_words

__all__ = [
    "MARKER",
    "SubwordSettings",
    "SubwordTokenizer",
    "count_words",
    "is_subword_tokenizer",
    "learn_subwords",
    "learn_subwords_to_size",
    "split_words",
]

_MODULES = {
    "MARKER": "polyencoder.text.subwords.tokenizer",
    "SubwordSettings": "polyencoder.text.subwords.learning",
    "SubwordTokenizer": "polyencoder.text.subwords.tokenizer",
    "count_words": "polyencoder.text.subwords.learning",
    "is_subword_tokenizer": "polyencoder.text.subwords.tokenizer",
    "learn_subwords": "polyencoder.text.subwords.learning",
    "learn_subwords_to_size": "polyencoder.text.subwords.learning",
    "split_words": "polyencoder.text.subwords.tokenizer",
}

__getattr__, __dir__ = build_lazy_names(__name__, _MODULES)
