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
        if any(option is None for option in options):
            some.append("json_extract(metadata, ?) IS NULL")  # a field that is missing equals None
            values.append(path)
        truths = [json.dumps(option) for option in options if isinstance(option, bool)]
        numbers = [one for one in options if isinstance(one, (int, float)) and not isinstance(one, bool)]
        # A stored list is given as its JSON, true as 1: so the type counts, too
        for types, wanted in (
            ("'text'", [option for option in options if isinstance(option, str)]),
            ("'integer', 'real'", [number for number in numbers if not _is_long(number)]),
        ):
            if wanted:
                some.append(
                    f"json_type(metadata, ?) IN ({types}) AND json_extract(metadata, ?) IN "
                    "(SELECT value FROM json_each(?))"
                )
                values += [path, path, json.dumps(wanted)]
        if truths:
            some.append("json_type(metadata, ?) IN (SELECT value FROM json_each(?))")
            values += [path, json.dumps(truths)]
        if long := [number for number in numbers if _is_long(number)]:
            # As numbers they would be rounded: of two paths SQLite gives the values as they are in the text
            some.append("json_extract(metadata, ?, ?) IN (SELECT value FROM json_each(?))")
            values += [path, path, json.dumps([f"[{option},{option}]" for option in long])]
        conditions.append(" OR ".join(some))
    return " AND ".join(f"({condition})" for condition in conditions) or "TRUE", values


def path_of(key: str) -> str:
    """Where a field is in the metadata: the key as JSON writes it. InputError for one that SQLite cannot be told."""
    if '"' in key:
        raise InputError(f"cannot filter by {key!r:.60}: an index folder has no filter with a quotation mark in a name")
    return f'$."{json.dumps(key, ensure_ascii=False)[1:-1]}"'


def _is_long(value: float) -> bool:
    """Whether it is a whole number that SQLite does not hold."""
    return isinstance(value, int) and value.bit_length() > 63
