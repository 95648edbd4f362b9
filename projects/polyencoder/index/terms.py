"""Filters in a database: each row has terms, short texts, and bounds, the smallest and largest values of its metadata.

No database's own equality is trusted: Milvus Lite finds 1 for true, and false for 0. A row has a value if it has the
value's term, and a value above another one if its largest value is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import Any

from polyencoder.index.filters import FieldTest, Filter, parse_filter, write_group
from polyencoder.index.values import Kind, format_value_text, list_field_values

LENGTH = 16
"""The length of a term, in characters."""

_COMPARED = {"$gt": ("max", ">"), "$gte": ("max", ">="), "$lt": ("min", "<"), "$lte": ("min", "<=")}


def list_terms(metadata: Mapping[str, Any]) -> list[str]:
    """The terms of a row, each once: of each field, of the kinds of its values, and of the values."""
    terms = []
    for key, value in metadata.items():
        texts = list_field_values(value)
        terms += [_hash_term(key), *(_hash_term(key, text) for text in texts)]
        terms += (_hash_term(key, letter, "") for letter in {text[:1] for text in texts})
    return terms


def list_bounds(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The smallest and the largest number and text of each field, by names of letters and digits, in hexadecimal."""
    bounds = {}
    for key, value in metadata.items():
        for letter, texts in groupby(sorted(list_field_values(value)), key=lambda text: text[:1]):
            if letter in ("n", "t"):
                ordered = [*texts]
                for end, text in (("min", ordered[0]), ("max", ordered[-1])):
                    bounds[_name_bound(key, letter, end)] = text.encode().hex()
    return bounds


def write_filter(
    filter: Filter | None, *, any_of: Callable[[list[str]], str], compare: Callable[[str, str, str], str]
) -> str:
    """A filter in a database's language; the empty text for none. Errors as in `parse_filter`.

    Args:
        any_of: writes that a row has any of these terms.
        compare: writes that a row's bound of a name exists and is >, >=, < or <= a text of letters and digits.
    """

    def write(test: FieldTest) -> str:
        key, operator, values = test
        if operator == "$exists":
            return any_of([_hash_term(key)]) if values[0] else f"NOT {any_of([_hash_term(key)])}"
        if operator in _COMPARED:
            end, sign = _COMPARED[operator]
            text = format_value_text(values[0])
            return compare(_name_bound(key, text[0], end), sign, text.encode().hex())
        condition = any_of([_hash_term(key, format_value_text(value)) for value in values])
        if None in values:
            condition = f"({condition} OR NOT {any_of([_hash_term(key)])})"
        return condition if operator == "$in" else f"NOT ({condition})"

    return write_group(parse_filter(filter), write)


def list_field_terms(key: str, kinds: Collection[Kind] = ()) -> list[str]:
    """A row with this field, or with a value of one of these kinds in it, has one of these terms."""
    return [_hash_term(key, kind[0], "") for kind in kinds] or [_hash_term(key)]


def _name_bound(key: str, letter: str, end: str) -> str:
    return f"{_hash_term(key, letter)}{end}"


def _hash_term(*parts: str) -> str:
    text = "\0".join(f"{len(part)} {part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=LENGTH // 2).hexdigest()
