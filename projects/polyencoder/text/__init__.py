"""Tokenization: tokenizers, truncation of contexts to whole turns, padded batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import lazy_names

if TYPE_CHECKING:
    from polyencoder.text.batches import token_batches
    from polyencoder.text.context import (
        join_turns,
        latest_utterances,
        normalize_lines,
        persona_lines,
        same,
        surround,
    )
    from polyencoder.text.encoder import AnyTokenizer, TextEncoder, read_subwords, read_tokenizer
    from polyencoder.text.tokens import TokenBatch, pad
    from polyencoder.text.vocabulary import (
        choose_separator,
        separate_turns,
        special_tokens,
        train_tokenizer,
        turn_separator,
    )

__all__ = [
    "AnyTokenizer",
    "TextEncoder",
    "TokenBatch",
    "choose_separator",
    "join_turns",
    "latest_utterances",
    "normalize_lines",
    "pad",
    "persona_lines",
    "read_subwords",
    "read_tokenizer",
    "same",
    "separate_turns",
    "special_tokens",
    "surround",
    "token_batches",
    "train_tokenizer",
    "turn_separator",
]

_MODULES = {
    "AnyTokenizer": "polyencoder.text.encoder",
    "TextEncoder": "polyencoder.text.encoder",
    "TokenBatch": "polyencoder.text.tokens",
    "join_turns": "polyencoder.text.context",
    "latest_utterances": "polyencoder.text.context",
    "normalize_lines": "polyencoder.text.context",
    "choose_separator": "polyencoder.text.vocabulary",
    "pad": "polyencoder.text.tokens",
    "persona_lines": "polyencoder.text.context",
    "read_subwords": "polyencoder.text.encoder",
    "read_tokenizer": "polyencoder.text.encoder",
    "same": "polyencoder.text.context",
    "separate_turns": "polyencoder.text.vocabulary",
    "special_tokens": "polyencoder.text.vocabulary",
    "surround": "polyencoder.text.context",
    "token_batches": "polyencoder.text.batches",
    "train_tokenizer": "polyencoder.text.vocabulary",
    "turn_separator": "polyencoder.text.vocabulary",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
