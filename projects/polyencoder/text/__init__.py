"""Tokenization: tokenizers, truncation of contexts to whole turns, padded batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.text.encoder import TextEncoder
    from polyencoder.text.tokens import TokenBatch

__all__ = ["TextEncoder", "TokenBatch"]

_MODULES = {"TextEncoder": "polyencoder.text.encoder", "TokenBatch": "polyencoder.text.tokens"}

__getattr__, __dir__ = build_lazy_names(__name__, _MODULES)
