"""What a filter is to find, in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def passes(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> bool:
    """Whether each of the fields equals in JSON one of the filter's values, or is a list that contains one."""
    return all(
        any(_has((metadata or {}).get(name), value) for value in (options if isinstance(options, list) else [options]))
        for name, options in filter.items()
    )


def _has(field: Any, value: Any) -> bool:
    """In JSON, true is not 1, and 1.0 is. A list has no null: that is a field without a value."""
    within = field if isinstance(field, list) and value is not None else []
    return any(isinstance(one, bool) == isinstance(value, bool) and one == value for one in (field, *within))
