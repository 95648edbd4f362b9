"""Parses values of YAML files into dataclasses; a missing, unknown or mistyped field is an error with its place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from polyencoder.errors import ConfigError, suggest_similar

T = TypeVar("T")


def parse_fields(kind: type[T], values: object, *, where: str, **fixed: Any) -> T:
    """Build a dataclass from a mapping of its fields, but those `fixed`; nested mappings and lists are kept unchanged.

    Raises:
        ConfigError: not a mapping, or a field is unknown, missing or of another type; the message begins with `where`.
    """
    assert dataclasses.is_dataclass(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a mapping of names to values, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in fixed}
    for name in values:
        if name not in fields:
            raise ConfigError(f"{where}: {name} is unknown{suggest_similar(str(name), fields)}")
    needed = (dataclasses.MISSING, dataclasses.MISSING)
    for name, field in fields.items():
        if name not in values and (field.default, field.default_factory) == needed:
            raise ConfigError(f"{where}: {name} is missing")
    hints = _hints(kind)
    for name, value in values.items():
        if not _is_of_type(value, hints[name]):
            raise ConfigError(f"{where}: {name} cannot be {value!r}")
    return kind(**values, **fixed)


def check_non_empty_list(values: object, *, where: str) -> Sequence[Any]:
    """Return `values` if it is a non-empty list; ConfigError otherwise."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: must be a non-empty list")
    return values


_hints = functools.cache(get_type_hints)  # the tables have thousands of cells


def _is_of_type(value: object, hint: Any) -> bool:
    """Whether a YAML value has this type; the contents of mappings and lists are not checked."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_of_type(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is float and isinstance(value, int):
        kind = int
    return kind is Any or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool))
