"""A ConveRT's texts, and its sizes as flags have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polyencoder.config import ConvertConfig, RankerConfig, TextConfig
from polyencoder.errors import ConfigError

__all__ = ["ConvertConfig", "convert_ranker", "convert_text", "parse_sizes", "shown_sizes"]


def convert_text(*, text_truncate: int = 60, label_truncate: int = 60, extra_contexts: int = 0) -> TextConfig:
    """How a ConveRT's texts are laid out: 60 subwords of each (Section 3), without a token around them.

    extra_contexts: turns before the last one that are read, 10 in the paper; 0 for a single-context model.
    """
    return TextConfig(
        text_truncate=text_truncate,
        label_truncate=label_truncate,
        history_size=1 + extra_contexts,
        pad_token="[PAD]",
        start_token="[PAD]",  # there is none
        end_token="[PAD]",
        separator="[EXTRA]",
        truncation="recent_first",
        surround=False,
    )


LISTS = ("attention_limits", "head_sizes")
"""Sizes that are several numbers: one of each block, one of each hidden layer."""


def parse_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ConvertConfig` as flags have them: those of `LISTS` as a text, numbers with commas."""
    return {name: _numbers(name, value) if name in LISTS else value for name, value in sizes.items()}


def shown_sizes(config: ConvertConfig, names: Iterable[str]) -> dict[str, Any]:
    """These fields as flags have them: what `parse_sizes` reads."""
    fields = {name: getattr(config, name) for name in names}
    return {name: ",".join(map(str, value)) if name in LISTS else value for name, value in fields.items()}


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name} is {text!r:.60}; it must be whole numbers with commas", argument=name) from None


def convert_ranker(config: ConvertConfig, text: TextConfig) -> RankerConfig:
    """The configuration of the whole ranker."""
    return RankerConfig("convert", text=text, share_encoders=True, normalize=True, convert=config)
