"""Milvus's expressions: filters on metadata, and rows by their ids, with everything in them quoted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from polyencoder.errors import InputError
from polyencoder.index.base import Filter

__all__ = ["any_of", "condition"]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def condition(filter: Filter | None) -> str:
    """A filter on metadata as a Milvus expression; the empty text for no filter.

    Raises:
        InputError: for a value that cannot be filtered by.
    """
    return " and ".join(
        "(" + (" or ".join(_equals(key, option) for option in options) or any_of("id", [])) + ")"
        for key, wanted in (filter or {}).items()
        for options in [wanted if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]]
    )


def any_of(field: str, values: Iterable[str]) -> str:
    """The expression for rows whose field is one of these texts."""
    return f"{field} in [{', '.join(map(_quoted, values))}]"


def _equals(key: str, value: Any) -> str:
    field = f"metadata[{_quoted(key)}]"
    if value is None:
        return f"(not (exists {field}))"  # fields that are null are never stored
    if isinstance(value, bool):
        return f"{field} == {str(value).lower()}"
    if isinstance(value, str):
        return f"{field} == {_quoted(value)}"
    if isinstance(value, (int, float)) and math.isfinite(value):
        return f"{field} == {value!r}"
    raise InputError(
        f"cannot filter by {key!r}: {value!r}; a filter has, for each name, a text, a number, true, false, null or a "
        "list of those"
    )


def _quoted(text: str) -> str:
    """A string literal of Milvus."""
    return '"' + text.translate(_ESCAPES) + '"'
