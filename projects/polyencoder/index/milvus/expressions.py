"""Milvus's expressions: filters on metadata, and rows by their ids, with everything in them quoted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from polyencoder.index.options import Filter, checked_filter

__all__ = ["any_of", "condition", "has_field"]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def condition(filter: Filter | None) -> str:
    """A filter on metadata as a Milvus expression; the empty text for no filter.

    Raises:
        InputError: for a value that cannot be filtered by.
    """
    return " and ".join(
        f"({' or '.join(_equals(key, option) for option in options) or any_of('id', [])})"
        for key, options in checked_filter(filter).items()
    )


def has_field(key: str) -> str:
    """The expression for rows whose metadata have this field; those that are null are never stored."""
    return f"exists metadata[{_quoted(key)}]"


def any_of(field: str, values: Iterable[str]) -> str:
    """The expression for rows whose field is one of these texts."""
    return f"{field} in [{', '.join(map(_quoted, values))}]"


def _equals(key: str, value: Any) -> str:
    if value is None:
        return f"(not ({has_field(key)}))"
    written = _quoted(value) if isinstance(value, str) else json.dumps(value)
    return f"metadata[{_quoted(key)}] == {written}"


def _quoted(text: str) -> str:
    """A string literal of Milvus."""
    return '"' + text.translate(_ESCAPES) + '"'
