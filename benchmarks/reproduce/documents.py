"""YAML files into dataclasses: what is missing, unknown or of another kind is an error that names file and place."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from polyencoder.errors import ConfigError

__all__ = ["listed", "made", "read_document", "suggested"]

Made = TypeVar("Made")


def read_document(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file is.

    Raises:
        ConfigError: it cannot be read, is no mapping, or names something twice, of which YAML would keep the last.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping of names to values")
    return document


def made(kind: type[Made], values: object, *, where: str) -> Made:
    """A dataclass from a mapping with its fields; mappings and lists within stay as they are.

    Raises:
        ConfigError: it is no mapping, or a field is unknown, missing or of another type; `where` says of what.
    """
    assert dataclasses.is_dataclass(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a mapping of names to values, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise ConfigError(f"{where}: {name} is unknown{suggested(str(name), fields)}")
    needed = (dataclasses.MISSING, dataclasses.MISSING)
    for name, field in fields.items():
        if name not in values and (field.default, field.default_factory) == needed:
            raise ConfigError(f"{where}: {name} is missing")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ConfigError(f"{where}: {name} cannot be {value!r}")
    return kind(**values)


def listed(values: object, *, where: str) -> Sequence[Any]:
    """A list that is not empty, or an error."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: must be a list, and not an empty one")
    return values


def suggested(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """`; did you mean ...?`, or which names there are."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else f"; it must be one of {', '.join(known)}"


def _fits(value: object, hint: Any) -> bool:
    """Whether a value of YAML is of this type; of mappings and lists the contents are not looked at."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is float and isinstance(value, int):
        kind = int
    return kind is Any or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool))


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses names that stand twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        names = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name} stands here twice", node.start_mark)
        return super().construct_mapping(node, deep)
