"""Candidates as rows of a Milvus collection, and filters as Milvus expressions, with everything quoted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from polyencoder.index.filters import Filter, checked_filter

MAX_BYTES = 65_535
"""The longest text, id or metadata that Milvus holds, in UTF-8."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def kept_metadata(id_: str, text: str, metadata: str) -> dict[str, Any]:
    """The metadata that Milvus stores. Raises ValueError for what it cannot hold.

    Fields that are null are dropped, which is the same to a filter.
    """
    fields: dict[str, Any] = json.loads(metadata)
    if long := [key for key, value in fields.items() if _is_long(value)]:
        raise ValueError(f"its {long[0]!r} has a whole number of more than 64 bits; Milvus does not support these")
    for name, value in {"id": id_, "text": text, "metadata": metadata}.items():
        if (n := len(value.encode())) > MAX_BYTES:
            raise ValueError(f"its {name} has {n:,} bytes; Milvus holds at most {MAX_BYTES:,}")
    return {name: value for name, value in fields.items() if value is not None}


def _is_long(value: Any) -> bool:
    """Whether it contains an integer of more than 64 bits."""
    if isinstance(value, (dict, list)):
        return any(map(_is_long, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64


def condition(filter: Filter | None) -> str:
    """A filter on metadata as a Milvus expression; the empty text for no filter.

    Raises:
        InputError: a value that cannot be filtered by.
    """
    return " and ".join(
        f"({' or '.join((*(_equals(key, one) for one in options), *_contains(key, options))) or any_of('id', [])})"
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
    return f"metadata[{_quoted(key)}] == {_written(value)}"


def _contains(key: str, options: Iterable[Any]) -> list[str]:
    """The condition that a field is a list with one of the options, if one of them can be in a list."""
    written = [_written(option) for option in options if option is not None]
    return [f"json_contains_any(metadata[{_quoted(key)}], [{', '.join(written)}])"] if written else []


def _written(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """A string literal of Milvus."""
    return '"' + text.translate(_ESCAPES) + '"'
