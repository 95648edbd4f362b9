"""Converts filters to conditions in SQL.

A field of the metadata passes if it, or an element of its list, equals a value in JSON; text, number and boolean are
never equal.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from polyencoder.errors import InputError
from polyencoder.index.filters import Filter, Kind, checked_filter

_TYPES: dict[Kind, tuple[str, ...]] = {
    "text": ("text",),
    "number": ("integer", "real"),
    "boolean": ("true", "false"),
    "object": ("object",),
}


def condition_of(filter: Filter | None) -> tuple[str, list[Any]]:
    """A filter in SQL, and the values of its question marks, whose number SQLite limits."""
    conditions: list[str] = []
    values: list[Any] = []
    for key, options in checked_filter(filter).items():
        path = path_of(key)
        passes, own = _equals(path, options, at="?")
        present = [one for one in options if one is not None]
        within, of_elements = _equals(path, present, at="? || '[' || key || ']'")
        # The first comparison of elements is fast, and true for more: it is of values as SQLite converts them
        conditions.append(
            f"{passes} OR json_type(metadata, ?) = 'array' AND EXISTS (SELECT 1 FROM json_each(metadata, ?) "
            f"WHERE value IN (SELECT value FROM json_each(?)) AND ({within}))"
        )
        values += [*own, path, path, json.dumps(present), *of_elements]
    return " AND ".join(f"({condition})" for condition in conditions) or "TRUE", values


def _equals(path: str, options: list[Any], *, at: str) -> tuple[str, list[Any]]:
    """The condition that a value of the metadata equals an option; `at` is its path in SQL, with a question mark."""
    some: list[str] = ["FALSE"]
    values: list[Any] = []
    if others := [written for option in options if not _is_number(option) for written in _written(option)]:
        # With one path SQLite converts values: true to 1, a list to text, a text cut at NUL, a long number rounded.
        # With two paths it returns a list of unchanged values. A missing field equals null.
        some.append(f"json_extract(COALESCE(metadata, '{{}}'), {at}, {at}) IN (SELECT value FROM json_each(?))")
        values += [path, path, json.dumps([f"[{other},{other}]" for other in others])]
    if numbers := [option for option in options if _is_number(option)]:
        some.append(
            f"json_type(metadata, {at}) IN ('integer', 'real') AND json_extract(metadata, {at}) IN "
            "(SELECT value FROM json_each(?))"
        )
        values += [path, path, json.dumps(numbers)]
    return " OR ".join(some), values


def exists(key: str, kinds: Collection[Kind] = ()) -> tuple[str, list[Any]]:
    """The condition that a field exists; with `kinds`, that it or an element of its list is of one of these."""
    if '"' in key and not kinds:
        return "EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = ?)", [key]  # which needs no path
    path = path_of(key)
    there = "json_type(metadata, ?) IS NOT NULL"
    if not kinds:
        return there, [path]
    types = json.dumps([name for kind in kinds for name in _TYPES[kind]])
    return (
        f"({there} AND "  # first: most candidates may lack the field, and it is read once for them
        "(json_type(metadata, ?) IN (SELECT value FROM json_each(?)) OR json_type(metadata, ?) = 'array' AND EXISTS "
        "(SELECT 1 FROM json_each(metadata, ?) WHERE type IN (SELECT value FROM json_each(?)))))"
    ), [path, path, types, path, path, types]


def path_of(key: str) -> str:
    """The JSON path of a metadata field. InputError for one without a path in SQLite."""
    if '"' in key:
        raise InputError(
            f"cannot filter by {key!r:.60}: an index folder cannot filter by a name with a quotation mark",
            argument="filter",
        )
    return f'$."{json.dumps(key, ensure_ascii=False)[1:-1]}"'


def _is_number(value: Any) -> bool:
    """Whether SQLite compares the number exactly with any other of 64 bits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 63


def _written(value: Any) -> list[str]:
    """The JSON of a value, and that of the equal integer or float."""
    equal = [value]
    if isinstance(value, float):
        equal.append(int(value))
    elif type(value) is int and value.bit_length() < 1024 and float(value) == value:
        equal.append(float(value))
    return [json.dumps(one, ensure_ascii=False) for one in equal]
