"""Filters as conditions in SQL on the entries: each names the entries that the table `fields` has for values."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from polyencoder.index.filters import FieldTest, Filter, parse_filter, write_group
from polyencoder.index.values import NULL, Kind, find_first_after, format_value_text, get_kind

_ENTRIES = "SELECT entry FROM fields WHERE key = ?"
_RANGES = {
    "$gt": "> ? AND value < ?",
    "$gte": ">= ? AND value < ?",
    "$lt": "< ? AND value >= ?",
    "$lte": "<= ? AND value >= ?",
}
"""The values that pass, and the end of their kind's."""


def to_sql(filter: Filter | None) -> tuple[str, list[Any]]:
    """A filter in SQL, and the values of its question marks, whose number SQLite limits."""
    bound: list[Any] = []

    def write(test: FieldTest) -> str:
        key, operator, values = test
        bound.append(key)
        if operator == "$exists":
            return f"number {'IN' if values[0] else 'NOT IN'} ({_ENTRIES})"
        if operator in _RANGES:
            kind = get_kind(values[0])
            bound.extend(
                (format_value_text(values[0]), find_first_after(kind) if operator in ("$gt", "$gte") else kind[0])
            )
            return f"number IN ({_ENTRIES} AND value {_RANGES[operator]})"
        bound.append(json.dumps([format_value_text(value) for value in values]))
        text = f"number IN ({_ENTRIES} AND value IN (SELECT value FROM json_each(?)))"
        if None in values:
            bound.extend((key, NULL))
            text += f" OR number NOT IN ({_ENTRIES} AND value <> ?)"
        return text if operator == "$in" else f"NOT ({text})"

    return write_group(parse_filter(filter), write) or "TRUE", bound


def build_exists(key: str, kinds: Collection[Kind] = ()) -> tuple[str, list[Any]]:
    """The condition on `fields` that a field exists; with `kinds`, that it has a value of one of these."""
    ranges = [text for kind in kinds for text in (kind[0], find_first_after(kind))]
    in_ranges = " OR ".join(["(value >= ? AND value < ?)"] * len(kinds))
    return f"key = ? AND ({in_ranges or 'TRUE'})", [key, *ranges]
