"""Declares settings as frozen dataclasses, which pydantic validates and cyclopts turns into flags.

A field is the only declaration of a setting: its type, its default, its choices (`Literal`), its limits (`Annotated`),
what it needs (`Needs`, `Without`), and its help, the docstring under it. Settings come from Python, a command line or a
YAML file, and all are checked here.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic
import pydantic.dataclasses
import yaml
from cyclopts import Group, Parameter
from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator
from typing_extensions import dataclass_transform  # typing's, from Python 3.11 on

from polyencoder.errors import ConfigError, InputError, get_first_line
from polyencoder.settings.fields import Leaf, get_leaves, set_flags
from polyencoder.settings.metadata import Needs, Without
from polyencoder.validation import convert_error, raise_config_errors

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader

PANELS = (
    "Data",
    "Model",
    "ConveRT",
    "Training",
    "Evaluation and checkpoints",
    "Distillation and hard negatives",
)
"""The first panels of the help, in their order."""

T = TypeVar("T")

_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def settings(*, panel: str | None = None, in_parlai: bool = False) -> Callable[[type[T]], type[T]]:
    """Class decorator: makes a subclass of `Settings` a validated frozen dataclass.

    `panel` is its panel of the help; `in_parlai` says that ParlAI's agents have its settings, too.

    Creating an instance with invalid values raises ConfigError.
    """

    def decorate(cls: type[T]) -> type[T]:
        validated: Any = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=_CONFIG)
        for member in dataclasses.fields(validated):
            if words := validated.__pydantic_fields__[member.name].description:  # a base class's fields have theirs
                member.metadata = MappingProxyType({**member.metadata, "help": " ".join(words.split())})
            if dataclasses.is_dataclass(plain := member.default_factory) and not issubclass(plain, Settings):
                set_flags(plain)
        raise_config_errors(validated)
        validated.__panel__, validated.__in_parlai__ = panel, in_parlai
        group = None if panel is None else Group(panel, sort_key=[*PANELS, panel].index(panel))
        flags = Parameter(name="*") if group is None else Parameter(name="*", group=group)
        return flags(validated)

    return decorate


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings. Nested settings are passed whole, as a mapping, or one by one by flat name."""

    @model_validator(mode="wrap")
    @classmethod
    def _complete(cls, raw: Any, handler: Callable[[Any], Any]) -> Any:
        """Reads the file `config`, adds dependent defaults, and rejects settings that nothing would read."""
        values = (raw.kwargs or {}) if hasattr(raw, "kwargs") else raw  # ArgsKwargs, of a call in Python
        if isinstance(values, _CompletedValues) or not isinstance(values, Mapping):
            return handler(values)  # nested settings, an instance, or invalid
        by_name = get_leaves(cls)
        flat = _flatten(by_name, values)
        file = flat.get("config") if "config" in by_name else None
        from_file = {} if file is None else _flatten(by_name, read_yaml(file), of_file=file)
        whole = {name: value for name, value in flat.items() if isinstance(value, Settings)}
        flat = {name: value for name, value in flat.items() if name not in whole}  # `optimizer` is also a flag's name
        below = {name: _get_value(whole, leaf.path) for name, leaf in by_name.items() if leaf.path[0] in whole}
        overridden = {*from_file} & {*flat} & {*by_name}
        try:
            check_values(cls, **{name: from_file[name] for name in overridden})  # values that a flag overrides, too
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        try:
            presets = cls.presets({**from_file, **below, **flat})
            usual = {**{name: value for name, value in presets.items() if name not in below}, **from_file}
            explicit = {**from_file, **flat}
            for name in overridden:
                if str(flat[name]) == str(by_name[name].default):  # a flag that takes a setting of the file back
                    del explicit[name]
            _check_needs(by_name, explicit, {**usual, **below})
            instance = handler(_nest(by_name, {**usual, **flat}, whole))
        except (ConfigError, ValidationError) as error:
            known_error = error if isinstance(error, ConfigError) else convert_error(error, of=cls)
            if known_error.argument in from_file and known_error.argument not in flat:
                raise ConfigError(f"{file}: {known_error}") from None
            raise
        object.__setattr__(instance, "_names", frozenset(name for name, value in explicit.items() if value is not None))
        return instance

    @property
    def explicit(self) -> frozenset[str]:
        """The flat names of the settings that were given explicitly."""
        names: frozenset[str] = getattr(self, "_names", frozenset())
        return names

    @classmethod
    def field_names(cls) -> Mapping[tuple[str, ...], str]:
        """The flat names of the settings, by their paths."""
        return {leaf.path: name for name, leaf in get_leaves(cls).items()}

    @classmethod
    def presets(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Defaults that depend on other settings, by flat name: they override a field's own default."""
        return {}

    def changed(self: T, **values: Any) -> T:
        """A copy with other values, by flat name, without validation."""
        clone = copy.copy(self)
        for name, value in values.items():
            *groups, last = get_leaves(type(self))[name].path
            inner: Any = clone
            for group in groups:
                outer, inner = inner, copy.copy(getattr(inner, group))
                object.__setattr__(outer, group, inner)
            object.__setattr__(inner, last, value)
        return clone

    @classmethod
    def of(cls: type[T], values: Mapping[str, Any] | None = None, /, **overrides: Any) -> T:
        """Makes settings of flat names, or nested mappings; `overrides` take precedence. ConfigError for wrong ones."""
        return cls(**(dict(values or {}) | overrides))


class _CompletedValues(dict[str, Any]):
    """Values of nested settings that the outer settings have completed."""


def check_values(cls: type[Settings], /, **values: Any) -> None:
    """Raises ConfigError for a value that the setting of this flat name cannot have, whatever other settings are."""
    for name, value in values.items():
        leaf = get_leaves(cls)[name]
        try:
            TypeAdapter(leaf.hint).validate_python(value)
        except ValidationError as error:
            raise convert_error(error, of=cls, path=leaf.path) from None


def get_flat_values(settings: Settings) -> dict[str, Any]:
    """The values of settings with a flag, by flat name."""
    items = get_leaves(type(settings)).items()
    return {name: _get_value(vars(settings), leaf.path) for name, leaf in items if leaf.has_flag}


def get_flat_defaults(settings: Settings) -> dict[str, Any]:
    """The defaults of `get_flat_values`, without required settings."""
    by_name, values = get_leaves(type(settings)), get_flat_values(settings)
    usual = {name: by_name[name].default for name in values} | dict(settings.presets(values))
    return {name: usual[name] for name in values if usual[name] is not dataclasses.MISSING}


def _get_value(groups: Mapping[str, Any], path: Sequence[str]) -> Any:
    return functools.reduce(getattr, path[1:], groups[path[0]])


def _flatten(
    by_name: Mapping[str, Leaf], values: Mapping[str, Any], path: tuple[str, ...] = (), *, of_file: str | None = None
) -> dict[str, Any]:
    """Flattens values, and mappings of nested settings. ConfigError for a setting that a file has by both names."""
    names = {leaf.path: name for name, leaf in by_name.items()}
    groups = {path[:end] for path in names for end in range(len(path))}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        key_path = (*path, str(key).replace("-", "_"))
        name = names.get(key_path, ".".join(key_path))
        if isinstance(value, Mapping) and (key_path in groups or name not in by_name):
            new = _flatten(by_name, value, key_path, of_file=of_file)
        elif isinstance(value, bool) and name in by_name and bool not in by_name[name].kinds:
            new = {name: (value,)}  # invalid: pydantic would read 1 or 0
        else:
            new = {name: os.fspath(value) if isinstance(value, os.PathLike) else value}
        if of_file is not None and (duplicates := sorted(flat.keys() & new.keys() & by_name.keys())):
            other = ".".join(by_name[duplicates[0]].path)
            raise ConfigError(f"{of_file}: {duplicates[0]} is given twice, also as {other}: give one of them")
        flat |= new
    return flat


def _nest(by_name: Mapping[str, Leaf], flat: Mapping[str, Any], whole: Mapping[str, Settings]) -> dict[str, Any]:
    """Nests flat values for pydantic, beside nested settings that are given whole."""
    nested: dict[str, Any] = {**whole}
    for name, value in flat.items():
        *groups, last = by_name[name].path if name in by_name else name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, _CompletedValues())
            if not isinstance(inner, _CompletedValues):
                raise ConfigError(f"{name} is given beside the whole of {group}: give one of them", argument=name)
        inner[last] = value
    return nested


def _check_needs(by_name: Mapping[str, Leaf], explicit: Mapping[str, Any], presets: Mapping[str, Any]) -> None:
    """Raises ConfigError for a non-default setting that the other settings leave unread."""
    defaults = {name: leaf.default for name, leaf in by_name.items()}
    values = {**defaults, **presets, **explicit}
    used = {
        name
        for name in {*explicit} & {*by_name}
        if explicit[name] is not None
        and (type(explicit[name]), explicit[name]) != (type(defaults[name]), defaults[name])
    }
    for name in sorted(used):
        for other, required, or_with in by_name[name].get_metadata(Needs):
            if other not in by_name or or_with in used:
                continue
            if required and values[other] not in required:
                words = " or ".join(str(value) for value in required if value is not None)
                raise ConfigError(
                    f"{name} is read only where {other} is {words}, not {values[other]}: leave it out", argument=name
                )
            if not required and other not in used:
                raise ConfigError(f"{name} is read only with {other}: give that too, or leave it out", argument=name)
        for (other,) in by_name[name].get_metadata(Without):
            if other in used:
                raise ConfigError(f"{name} is not read with {other}: give one of them", argument=name)


_MERGE = "tag:yaml.org,2002:merge"


class _Loader(SafeLoader):
    """Refuses a name that is given twice: YAML would keep the last value."""

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
    """Reads a mapping from a YAML file. InputError for anything else, and for a name that is given twice."""
    if not os.fspath(path):
        raise InputError("config is empty: give a YAML file, or leave it out", argument="config")
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.load(file, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({get_first_line(error)})", argument="config") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})", argument="config") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must hold `name: value` lines", argument="config")
    return values
