"""Filters by metadata, and how a result was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from polyencoder.checks import unencodable
from polyencoder.errors import InputError

__all__ = ["Exactness", "Filter", "checked_filter"]

Exactness = Literal["exact", "certified", "approximate"]
"""How a result was found: by scoring everything, by a shortlist with a proof, or by one without."""

Filter = Mapping[str, Any]
"""Metadata fields and the value that each must have, or a list have in it; a list of values means any of them."""


def checked_filter(filter: Filter | None) -> dict[str, list[Any]]:
    """Checks a filter: field of the metadata -> allowed values.

    Raises:
        InputError: it is invalid, or has values that JSON lacks (nan, infinity).
    """
    if not isinstance(filter, (Mapping, type(None))):
        raise InputError(
            f"filter is {filter!r:.60}; it must be a dict, such as {{'lang': 'en', 'n': [1, 2]}}", argument="filter"
        )
    wanted: dict[str, list[Any]] = {}
    for key, options in (filter or {}).items():
        if not isinstance(key, str):
            raise InputError(f"cannot filter by {key!r:.60}: a metadata field's name is a text", argument="filter")
        wanted[key] = list(options) if isinstance(options, (list, tuple, set, frozenset)) else [options]
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
