"""Tokenization: tokenizers, truncation of contexts to whole turns, padded batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.text.batches import cut_into_batches
    from polyencoder.text.context import (
        join_turns,
        normalize_lines,
        normalize_text,
        select_latest_utterances,
        select_persona_lines,
        surround,
    )
    from polyencoder.text.encoder import AnyTokenizer, TextEncoder, read_subwords, read_tokenizer
    from polyencoder.text.tokens import TokenBatch, pad
    from polyencoder.text.vocabulary import (
        choose_separator,
        get_turn_separator,
        read_special_tokens,
        separate_turns,
        train_tokenizer,
    )

__all__ = [
    "AnyTokenizer",
    "TextEncoder",
    "TokenBatch",
    "choose_separator",
    "cut_into_batches",
    "get_turn_separator",
    "join_turns",
    "normalize_lines",
    "normalize_text",
    "pad",
    "read_special_tokens",
    "read_subwords",
    "read_tokenizer",
    "select_latest_utterances",
    "select_persona_lines",
    "separate_turns",
    "surround",
    "train_tokenizer",
]

_MODULES = {
    "AnyTokenizer": "polyencoder.text.encoder",
    "TextEncoder": "polyencoder.text.encoder",
    "TokenBatch": "polyencoder.text.tokens",
    "join_turns": "polyencoder.text.context",
    "select_latest_utterances": "polyencoder.text.context",
    "normalize_lines": "polyencoder.text.context",
    "choose_separator": "polyencoder.text.vocabulary",
    "pad": "polyencoder.text.tokens",
    "select_persona_lines": "polyencoder.text.context",
    "read_subwords": "polyencoder.text.encoder",
    "read_tokenizer": "polyencoder.text.encoder",
    "normalize_text": "polyencoder.text.context",
    "separate_turns": "polyencoder.text.vocabulary",
    "read_special_tokens": "polyencoder.text.vocabulary",
    "surround": "polyencoder.text.context",
    "cut_into_batches": "polyencoder.text.batches",
    "train_tokenizer": "polyencoder.text.vocabulary",
    "get_turn_separator": "polyencoder.text.vocabulary",
}

__getattr__, __dir__ = build_lazy_names(__name__, _MODULES)
