"""ConveRT's text layout, and its sizes as flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polyencoder.config import ConvertConfig, RankerConfig, TextConfig
from polyencoder.errors import ConfigError


def convert_text(*, extra_contexts: int = 0) -> TextConfig:
    """ConveRT's text layout: 60 subwords per text (Section 3); extra_contexts: turns before the last one."""
    return TextConfig(
        text_truncate=60,
        label_truncate=60,
        history_size=1 + extra_contexts,
        pad_token="[PAD]",
        start_token="[PAD]",  # unused
        end_token="[PAD]",
        separator="[EXTRA]",
        truncation="recent_first",
        surround=False,
    )


LISTS = ("attention_limits", "head_sizes")
"""Sizes that are lists: one number per block, one per hidden layer."""


def parse_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Parses flags into fields of `ConvertConfig`: the fields `LISTS` are comma-separated numbers."""
    return {name: _parse_numbers(name, value) if name in LISTS else value for name, value in sizes.items()}


def format_sizes(config: ConvertConfig, names: Iterable[str]) -> dict[str, Any]:
    """Formats fields as flags, the inverse of `parse_sizes`."""
    fields = {name: getattr(config, name) for name in names}
    return {name: ",".join(map(str, value)) if name in LISTS else value for name, value in fields.items()}


def _parse_numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name} is {text!r:.60}; it must be comma-separated integers", argument=name) from None


def convert_ranker(config: ConvertConfig, text: TextConfig) -> RankerConfig:
    """The ranker's configuration, from ConveRT's sizes and text layout."""
    return RankerConfig(architecture="convert", text=text, share_encoders=True, normalize=True, convert=config)
