"""Reads a YAML file of names and values; a name that is given twice is an error: YAML would keep the last value."""

from __future__ import annotations

import os
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader

from polyencoder.errors import InputError, first_line

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: list[Any] = []
        for key in (key for key, _ in node.value if key.tag != _MERGE):
            name = self.construct_object(key, deep=True)
            name = name.replace("-", "_") if isinstance(name, str) else name  # alike in names of settings
            if name in names:
                raise InputError(f"{key.start_mark.name}, line {key.start_mark.line + 1}: {name} is given twice")
            names.append(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Reads a mapping from a YAML file. Raises InputError for anything else, and for a name that is given twice."""
    if not os.fspath(path):
        raise InputError("config is empty: give a YAML file, or leave it out", argument="config")
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.load(file, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)})", argument="config") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})", argument="config") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must hold `name: value` lines", argument="config")
    return values
