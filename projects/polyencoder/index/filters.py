"""Filters by metadata, and how a result was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from polyencoder.checks import unencodable
from polyencoder.errors import InputError
from polyencoder.index.entries import plain

__all__ = ["Exactness", "Filter", "Kind", "check_fields", "checked_filter", "kind_of"]

Exactness = Literal["exact", "certified", "approximate"]
"""How a result was found: by scoring everything, by a shortlist with a proof, or by one without."""

Filter = Mapping[str, Any]
"""Metadata fields and the value that each must have, or a list have in it; a list of values means any of them."""

MAX_FIELDS = 100
"""Metadata fields of a filter: databases limit how deep a condition is."""

Kind = Literal["text", "number", "boolean", "object"]
"""The kind of a value; values of different kinds are never equal, and no filter asks for objects."""


def checked_filter(filter: Filter | None) -> dict[str, list[Any]]:
    """A filter, field -> allowed values, as metadata store them (dates as text). InputError if it is invalid."""
    if not isinstance(filter, (Mapping, type(None))):
        raise InputError(
            f"filter is {filter!r:.60}; it must be a dict, such as {{'lang': 'en', 'n': [1, 2]}}", argument="filter"
        )
    if filter is not None and len(filter) > MAX_FIELDS:
        raise InputError(f"filter has {len(filter):,} fields; it must have at most {MAX_FIELDS}", argument="filter")
    wanted: dict[str, list[Any]] = {}
    for key, options in (filter or {}).items():
        if not isinstance(key, str):
            raise InputError(f"cannot filter by {key!r:.60}: a metadata field's name is a text", argument="filter")
        options = _plain(options)
        wanted[key] = [*map(_plain, options)] if isinstance(options, (list, tuple, set, frozenset)) else [options]
        for option in wanted[key]:
            if (
                not isinstance(option, (str, int, float, type(None)))
                or (isinstance(option, float) and not math.isfinite(option))
                or any(unencodable(text) for text in (key, option) if isinstance(text, str))
            ):
                raise InputError(
                    f"cannot filter by {key!r:.60}: {option!r:.60}; a filter has, for each name, a text, a finite "
                    "number, true, false, null or a list of those",
                    argument="filter",
                )
    return wanted


def check_fields(filter: Filter | None, *, has_field: Callable[[str, Collection[Kind]], bool]) -> None:
    """Checks that candidates have the fields of a filter, with values of a kind that it asks for.

    `has_field` is `Index.has_field`. A field may be missing where a value is None, which a missing field equals. One
    that is null or an empty list for all candidates has no kind: any may come.

    Raises:
        InputError: no candidate has a field, or all have values of other kinds in it.
    """
    for key, values in checked_filter(filter).items():
        kinds = {kind_of(value) for value in values if value is not None}
        if None in values or has_field(key, kinds):
            continue
        if not has_field(key, ()):
            raise InputError(
                f"cannot filter by {key!r}: no candidate of the index has this metadata field", argument="filter"
            )
        if others := " and ".join(f"{kind}s" for kind in get_args(Kind) if has_field(key, (kind,))):
            raise InputError(
                f"cannot filter by {key!r}: {values[0]!r:.60} is a {kind_of(values[0])}, and in this metadata field "
                f"the candidates have {others} alone, which never equal one",
                argument="filter",
            )


def _plain(value: Any) -> Any:
    """A value as metadata store it; unchanged if they cannot."""
    if isinstance(value, (str, int, float, list, tuple, set, frozenset, type(None))):
        return value
    try:
        return _plain(plain(value))  # numpy's dates are Python's first
    except TypeError:
        return value


def kind_of(value: str | float) -> Kind:
    """The kind of a value, as equality sees it."""
    return "text" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "number"
