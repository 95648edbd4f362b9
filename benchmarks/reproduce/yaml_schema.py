"""Parses YAML files into dataclasses; a missing, unknown or mistyped field is an error that names file and place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader

from polyencoder.errors import ConfigError, did_you_mean

T = TypeVar("T")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: it cannot be read, is not a mapping, or has a duplicate key (YAML itself would keep the last).
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping of names to values")
    return document


def parse_fields(kind: type[T], values: object, *, where: str, **known: Any) -> T:
    """Build a dataclass from a mapping of its fields, but those `known`; nested mappings and lists are kept unchanged.

    Raises:
        ConfigError: not a mapping, or a field is unknown, missing or of another type; the message begins with `where`.
    """
    assert dataclasses.is_dataclass(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a mapping of names to values, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in known}
    for name in values:
        if name not in fields:
            raise ConfigError(f"{where}: {name} is unknown{did_you_mean(str(name), fields)}")
    needed = (dataclasses.MISSING, dataclasses.MISSING)
    for name, field in fields.items():
        if name not in values and (field.default, field.default_factory) == needed:
            raise ConfigError(f"{where}: {name} is missing")
    hints = _hints(kind)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ConfigError(f"{where}: {name} cannot be {value!r}")
    return kind(**values, **known)


def non_empty_list(values: object, *, where: str) -> Sequence[Any]:
    """Return `values` if it is a non-empty list; ConfigError otherwise."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: must be a non-empty list")
    return values


_hints = functools.cache(get_type_hints)  # the tables have thousands of cells


def _fits(value: object, hint: Any) -> bool:
    """Whether a YAML value has this type; the contents of mappings and lists are not checked."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is float and isinstance(value, int):
        kind = int
    return kind is Any or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool))


class _Loader(SafeLoader):
    """SafeLoader that rejects duplicate keys of a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        names = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {name}", node.start_mark)
        return super().construct_mapping(node, deep)
