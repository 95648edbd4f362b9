"""Filters in SQL: a field of the metadata equals a value if JSON calls them equal, text, number and truth apart."""

from __future__ import annotations

import json
from typing import Any

from polyencoder.errors import InputError
from polyencoder.index.options import Filter, checked_filter

__all__ = ["condition_of", "path_of"]


def condition_of(filter: Filter | None) -> tuple[str, list[Any]]:
    """A filter in SQL, with the values of its question marks, of which SQLite allows only so many."""
    conditions: list[str] = []
    values: list[Any] = []
    for key, options in checked_filter(filter).items():
        path, some = path_of(key), ["FALSE"]
        if others := [json.dumps(option, ensure_ascii=False) for option in options if not _is_number(option)]:
            # One path's value would be changed: true to 1, a list to text, a text cut at a NUL, a long number rounded.
            # Of two paths SQLite gives a list of the values as they are in the text. A missing field equals null.
            some.append("json_extract(COALESCE(metadata, '{}'), ?, ?) IN (SELECT value FROM json_each(?))")
            values += [path, path, json.dumps([f"[{other},{other}]" for other in others])]
        if numbers := [option for option in options if _is_number(option)]:
            some.append(
                "json_type(metadata, ?) IN ('integer', 'real') AND json_extract(metadata, ?) IN "
                "(SELECT value FROM json_each(?))"
            )
            values += [path, path, json.dumps(numbers)]
        conditions.append(" OR ".join(some))
    return " AND ".join(f"({condition})" for condition in conditions) or "TRUE", values


def path_of(key: str) -> str:
    """Where a field is in the metadata: the key as JSON writes it. InputError for one that SQLite cannot be told."""
    if '"' in key:
        raise InputError(f"cannot filter by {key!r:.60}: an index folder has no filter with a quotation mark in a name")
    return f'$."{json.dumps(key, ensure_ascii=False)[1:-1]}"'


def _is_number(value: Any) -> bool:
    """Whether it is a number that SQLite can hold."""
    return isinstance(value, float) or (type(value) is int and value.bit_length() <= 63)
