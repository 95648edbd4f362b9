"""Filters in a database: each row has the terms of its metadata, short texts, and a condition names terms.

No database's own equality is trusted: Milvus Lite finds 1 for true, and false for 0. Here text, number and boolean are
never equal, and 1 and 1.0 are. A field passes if it, or an element of its list, equals a value of the filter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from polyencoder.index.filters import Filter, Kind, checked_filter, kind_of

LENGTH = 16
"""The length of a term, in characters."""


class Condition(NamedTuple):
    """The condition of a filter on one field."""

    any_of: list[str]
    """Terms of which a row must have one."""
    or_without: str | None
    """The term whose absence passes, too; None for none."""


def terms_of(metadata: Mapping[str, Any]) -> list[str]:
    """The terms of a row, each once: of each field, of the kinds of its values, and of the values."""
    return list(dict.fromkeys(term for key, value in metadata.items() for term in _of_field(key, value)))


def conditions(filter: Filter | None) -> list[Condition]:
    """The conditions that the terms of a row must fulfil to pass. Errors are those of `checked_filter`."""
    wanted = []
    for key, options in checked_filter(filter).items():
        any_of = [_term(key, "null") if option is None else _of_value(key, option) for option in options]
        wanted.append(Condition(any_of, _term(key) if None in options else None))
    return wanted


def field_terms(key: str, kinds: Collection[Kind] = ()) -> list[str]:
    """The terms of which a row has one if it has this field; with `kinds`, with a value of one of these."""
    return [_term(key, kind) for kind in kinds] or [_term(key)]


def _of_field(key: str, value: Any) -> Iterator[str]:
    yield _term(key)
    if value is None:
        yield _term(key, "null")
    for element in value if isinstance(value, list) else [value]:
        if isinstance(element, dict):
            yield _term(key, "object")
        elif element is not None and not isinstance(element, list):
            yield _term(key, kind_of(element))
            yield _of_value(key, element)


def _of_value(key: str, value: str | int | float) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    written = hex(value) if type(value) is int else str(value)  # decimal digits are limited
    return _term(key, kind_of(value), written)


def _term(*parts: str) -> str:
    text = "\0".join(f"{len(part)} {part}" for part in parts)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=LENGTH // 2).hexdigest()
