"""Parses values of files into dataclasses; a missing, unknown or mistyped field is an error with its place."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from polyencoder.errors import ConfigError, suggest_similar

T = TypeVar("T")

_adapt = functools.cache(TypeAdapter)  # the tables have thousands of cells


def parse_fields(kind: type[T], values: Any, *, where: str, **fixed: Any) -> T:
    """Build a dataclass, and those in it, from a mapping of its fields, but those `fixed`.

    Raises:
        ConfigError: not a mapping, or a field is unknown, missing or of another type; the message begins with `where`.
    """
    try:
        if unknown := fixed.keys() & values:
            raise ConfigError(f"{where}: {', '.join(unknown)} is unknown")
        parsed: T = _adapt(kind).validate_json(  # type: ignore[arg-type]
            json.dumps({**values, **fixed}, default=str), strict=True, extra="forbid"
        )
    except TypeError:
        raise ConfigError(f"{where}: must be a mapping of names to values, not {values!r}") from None
    except ValidationError as error:
        detail = min(error.errors(), key=lambda detail: detail["type"] != "unexpected_keyword_argument")
        *path, name = map(str, detail["loc"])
        fields = [] if path else [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        problem = {
            "unexpected_keyword_argument": f"is unknown{suggest_similar(name, fields, listed=False)}",
            "missing": "is missing",
        }.get(detail["type"], f"cannot be {detail['input']!r}")
        raise ConfigError(f"{', '.join([where, *path])}: {name} {problem}") from None
    return parsed


def check_non_empty_list(values: object, *, where: str) -> Sequence[Any]:
    """Return `values` if it is a non-empty list; ConfigError otherwise."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: must be a non-empty list")
    return values
