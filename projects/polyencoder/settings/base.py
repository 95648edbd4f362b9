"""Declares settings: frozen dataclasses that pydantic checks and of which cyclopts makes flags.

A field is the only declaration of a setting: its type, its default, its choices (`Literal`), its limits (`Annotated`),
what it needs (`Needs`, `Without`), and its help, the docstring under it. Settings are made by Python, by a command line
and by a YAML file, and all three are checked here.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import (
    Any,
    NamedTuple,
    TypeVar,
)

import pydantic
import pydantic.dataclasses
import yaml
from cyclopts import Group, Parameter
from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator
from typing_extensions import dataclass_transform  # typing's, from Python 3.11 on

from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.settings.fields import Leaf, Needs, Without, leaves
from polyencoder.settings.messages import config_error

__all__ = ["Settings", "flat_values", "settings"]

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
    """Makes a class, a subclass of `Settings`, a frozen dataclass of settings.

    `panel` is its place in the help; `in_parlai` says that ParlAI's agents have its settings, too.

    Making one with values that cannot be raises ConfigError.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=_CONFIG)
        for one in dataclasses.fields(made):
            if words := made.__pydantic_fields__[one.name].description:  # that of a base class is there already
                one.metadata = MappingProxyType({**one.metadata, "help": " ".join(words.split())})
        build = made.__init__

        @functools.wraps(build)
        def checked(self: T, **given: Any) -> None:
            try:
                build(self, **given)
            except ValidationError as error:
                raise config_error(error, of=made) from None

        made.__init__, made.__panel__, made.__in_parlai__ = checked, panel, in_parlai
        group = None if panel is None else Group(panel, sort_key=[*PANELS, panel].index(panel))
        flags = Parameter(name="*") if group is None else Parameter(name="*", group=group)
        return flags(made)

    return decorate


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of all settings. Nested ones are given whole, as a mapping, or each of theirs by its flat name."""

    @model_validator(mode="wrap")
    @classmethod
    def _complete(cls, given: Any, handler: Callable[[Any], Any]) -> Any:
        """Checks that given settings are read, and adds the defaults that depend on others."""
        if hasattr(given, "kwargs"):  # of a call in Python
            given = given.kwargs or {}
        if isinstance(given, _Checked) or not isinstance(given, Mapping):
            return handler(given)  # an instance, or what is no settings at all
        known = leaves(cls)
        flat, groups = _flat(cls, given)
        file = flat.get("config") if "config" in known else None
        held = {} if file is None else _flat(cls, read_yaml(file))[0]
        below = {name: _value(groups, leaf.path) for name, leaf in known.items() if leaf.path[0] in groups}
        _check_overridden(cls, {name: held[name] for name in held if name in flat}, origin=str(file))
        try:
            presets = cls.presets({**held, **below, **flat})
            usual = {**{name: value for name, value in presets.items() if name not in below}, **held}
            unset = {name for name in {*held} & {*flat} & {*known} if str(flat[name]) == str(known[name].default)}
            wanted = {name: value for name, value in {**held, **flat}.items() if name not in unset}
            names = _check_needs(known, wanted, {**usual, **below})
            made = handler(_nested(known, {**usual, **flat}, groups))
        except (ConfigError, ValidationError) as error:
            known_error = error if isinstance(error, ConfigError) else config_error(error, of=cls)
            if known_error.argument in held and known_error.argument not in flat:
                raise ConfigError(f"{file}: {known_error}") from None
            raise
        object.__setattr__(made, "_names", names)
        return made

    @property
    def given(self) -> frozenset[str]:
        """The flat names of the settings that were given, whatever their values."""
        names: frozenset[str] = getattr(self, "_names", frozenset())
        return names

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults that depend on other settings, by flat names: between a field's own and what is given."""
        return {}

    def changed(self: T, **values: Any) -> T:
        """A copy with other values, by their flat names; they are not checked."""
        made = copy.copy(self)
        for name, value in values.items():
            *groups, last = leaves(type(self))[name].path
            inner: Any = made
            for group in groups:
                outer, inner = inner, copy.copy(getattr(inner, group))
                object.__setattr__(outer, group, inner)
            object.__setattr__(inner, last, value)
        return made

    @classmethod
    def of(cls: type[T], values: Mapping[str, Any] | None = None, /, **given: Any) -> T:
        """Settings of flat names, as flags have them, or of nested mappings; `given` take precedence.

        Raises:
            ConfigError: a name is unknown, or a value is not of its type or within its limits.
        """
        return cls(**(dict(values or {}) | given))


class _Truth(NamedTuple):
    """True or False in the place of a number, which pydantic would take for 1 or 0."""

    value: bool

    def __repr__(self) -> str:
        return repr(self.value)


def _no_truth(leaf: Leaf, value: Any) -> Any:
    return _Truth(value) if isinstance(value, bool) and not leaf.takes_bool else value


class _Checked(dict[str, Any]):
    """Values of nested settings that the outer ones have looked at."""


def _check_overridden(cls: type, values: Mapping[str, Any], *, origin: str) -> None:
    """Raises ConfigError for a value of a file that cannot be, though a flag takes precedence."""
    for leaf, value in ((leaves(cls)[name], value) for name, value in values.items()):
        try:
            TypeAdapter(leaf.hint).validate_python(_no_truth(leaf, value))
        except ValidationError as error:
            raise ConfigError(f"{origin}: {config_error(error, of=cls, path=leaf.path)}") from None


def read_yaml(path: str) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises InputError where it holds none."""
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: cannot be read ({first_line(error)})") from None
    except yaml.YAMLError as error:
        raise InputError(f"--config {path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path}: must hold `name: value` lines")
    return values


def flat_values(settings: Settings) -> dict[str, Any]:
    """The values of settings that have a flag, by their flat names."""
    known = leaves(type(settings)).items()
    return {name: _value(vars(settings), leaf.path) for name, leaf in known if leaf.has_flag}


def _value(groups: Mapping[str, Any], path: Sequence[str]) -> Any:
    return functools.reduce(getattr, path[1:], groups[path[0]])


def _flat(cls: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Settings]]:
    """Values by flat names, those in a mapping for nested settings too; and nested settings that are given whole."""
    names = {leaf.path: name for name, leaf in leaves(cls).items()}
    flat: dict[str, Any] = {}
    whole: dict[str, Settings] = {}

    def add(path: tuple[str, ...], values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            place = (*path, str(key).replace("-", "_"))
            if isinstance(value, Settings) and len(place) == 1:
                whole[place[0]] = value
            elif isinstance(value, Mapping):
                add(place, value)
            else:
                name = names.get(place, place[0] if len(place) == 1 else ".".join(place))
                flat[name] = os.fspath(value) if isinstance(value, os.PathLike) else value

    add((), given)
    return flat, whole


def _nested(known: Mapping[str, Leaf], flat: Mapping[str, Any], whole: Mapping[str, Settings]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = known[name].path if name in known else name.split(".")
        if groups and groups[0] in whole:
            raise ConfigError(f"{name} is given beside the whole of {groups[0]}: give one of them", argument=name)
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, _Checked())
        inner[last] = _no_truth(known[name], value) if name in known else value
    return {**nested, **whole}


def _check_needs(known: Mapping[str, Leaf], flat: Mapping[str, Any], presets: Mapping[str, Any]) -> frozenset[str]:
    """The names of the given settings, those with another value than their default.

    Raises:
        ConfigError: the other settings leave one of them unread.
    """

    def given(name: str) -> bool:
        value = flat.get(name)
        return name in flat and value is not None and (type(value), value) != (type(default(name)), default(name))

    def default(name: str) -> Any:
        return known[name].default if name in known else None

    names = frozenset(name for name in flat if given(name))
    for name in sorted(names & set(known)):
        for other, values, or_with in known[name].metadata(Needs):
            if other not in known or (or_with and given(or_with)):
                continue
            actual = flat.get(other, presets.get(other, default(other)))
            if values and actual not in values:
                wanted = " or ".join(str(one) for one in values if one is not None)
                raise ConfigError(
                    f"{name} is read only where {other} is {wanted}, not {actual}: leave it out",
                    argument=name,
                )
            if not values and not given(other):
                raise ConfigError(f"{name} is read only with {other}: give that too, or leave it out", argument=name)
        for (other,) in known[name].metadata(Without):
            if given(other):
                raise ConfigError(f"{name} is not read with {other}: give one of them", argument=name)
    return frozenset(name for name, value in flat.items() if value is not None)
