"""Fields of settings: types, limits, metadata, and their paths in nested settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
from cyclopts import Parameter
from pydantic import BeforeValidator

from polyencoder.settings.metadata import Flag, Needs, Parlai, Without
from polyencoder.validation import Share

T = TypeVar("T")


def split_commas(value: Any) -> Any:
    """Splits the values of a flag at commas: `"1, 2"`, or a list of such texts -> `("1", "2")`."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(text, str) for text in value):
        value = ",".join(value)
    return tuple(text.strip() for text in value.split(",")) if isinstance(value, str) else value


def split_numbers(value: Any) -> Any:
    """`split_commas` of a setting of several numbers, which may be a single one in a YAML file: 16 -> `(16,)`."""
    return (value,) if isinstance(value, int | float) else split_commas(value)


Files = Annotated[str, Parameter(allow_repeating=False)]
"""A file or a pattern of files, or several of them with commas between them."""
OneIndex = Annotated[str, Parameter(alias="-i", allow_repeating=False)]
"""A single index, where other settings take several: a second is an error, instead of replacing the first."""
Numbers = Annotated[tuple[int, ...], BeforeValidator(split_numbers), Parameter(n_tokens=1)]
"""Whole numbers, in a text with commas."""
Shares = Annotated[tuple[float, ...], BeforeValidator(split_numbers), Parameter(n_tokens=1)]
"""Numbers between 0 and 1, in a text with commas."""
Pair = Annotated[tuple[Share, Share], BeforeValidator(split_numbers), Parameter(n_tokens=1)]
"""Two shares, in a text with a comma."""
Hidden = Parameter(parse=False)
"""Metadata of a setting that has no flag."""


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """A setting at any depth: its path of fields, its type with metadata, its field and class."""

    path: tuple[str, ...]
    hint: Any
    field: dataclasses.Field[Any]
    owner: type

    def get_metadata(self, kind: type[T]) -> list[T]:
        """The metadata of one class, including that of types in a union."""
        return [part for part in self.kinds if isinstance(part, kind)]

    @functools.cached_property
    def kinds(self) -> tuple[Any, ...]:
        """The types of its values: `(float, NoneType)` of an optional number; and the metadata."""
        return tuple(iter_parts(self.hint))

    @functools.cached_property
    def choices(self) -> tuple[Any, ...]:
        """The values of the `Literal` in its type."""
        return tuple(choice for kind in self.kinds if get_origin(kind) is Literal for choice in get_args(kind))

    @functools.cached_property
    def help(self) -> str:
        """The docstring under the field, in one line."""
        return str(self.field.metadata.get("help") or read_docstrings(self.owner).get(self.path[-1], ""))

    @property
    def panel(self) -> str:
        """The class's panel in the help."""
        return str(getattr(self.owner, "__panel__", None) or "Settings")

    @functools.cached_property
    def parlai(self) -> Parlai | None:
        """ParlAI's option for the setting, by its own name or the flag's; None without one."""
        option = next(
            iter(self.get_metadata(Parlai)), Parlai("" if getattr(self.owner, "__in_parlai__", False) else None)
        )
        return None if option.name is None else option._replace(name=option.name or _get_flat_name(self))

    @property
    def has_flag(self) -> bool:
        return all(flag.parse is not False for flag in self.get_metadata(Parameter))

    @property
    def default(self) -> Any:
        """The default value; `dataclasses.MISSING` for a required setting."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return self.field.default


def _get_flat_name(leaf: Leaf) -> str:
    if not leaf.has_flag:
        return ".".join(leaf.path)
    flags = [name for flag in leaf.get_metadata(Parameter) for name in flag.name or () if name.startswith("--")]
    return flags[0].removeprefix("--").replace("-", "_") if flags else leaf.path[-1]


def get_leaves(cls: type) -> Mapping[str, Leaf]:
    """The settings of a class, nested ones included, by flat name, which is the flag's."""
    return _index_by_name(cls)


@functools.cache
def _index_by_name(cls: type) -> Mapping[str, Leaf]:
    return MappingProxyType({_get_flat_name(leaf): leaf for leaf in _iter_leaves(cls, ())})


def _iter_leaves(cls: type, path: tuple[str, ...], needs: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """The settings below a class; settings of a group need what the group needs."""
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = functools.reduce(lambda inner, need: Annotated[inner, need], needs, hints[field.name])
        inner = get_group(hint)
        if inner is None:
            yield Leaf((*path, field.name), hint, field, cls)
        else:
            conditions = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, (Needs, Without))]
            yield from _iter_leaves(inner, (*path, field.name), tuple(conditions))


def set_flags(cls: type) -> None:
    """Gives a dataclass that does not import cyclopts its flags; docstrings, in one line, are their help."""
    for field in dataclasses.fields(cls):
        field.metadata = MappingProxyType({**field.metadata, "help": read_docstrings(cls).get(field.name, "")})
    for name, hint in get_type_hints(cls, include_extras=True).items():
        for flag in (part for part in iter_parts(hint) if isinstance(part, Flag)):
            flag_name = None if flag.name is None else f"--{flag.name.replace('_', '-')}"
            cls.__annotations__[name] = Annotated[hint, Parameter(name=flag_name, alias=flag.alias, parse=flag.parse)]
    Parameter(name="*")(cls)


@functools.cache
def read_docstrings(cls: type) -> dict[str, str]:
    """The docstrings under the fields of a plain dataclass or NamedTuple, those of its bases included."""
    bases = [base for base in reversed(cls.__mro__) if base.__module__ != "builtins"]
    documented = [parameter for base in bases for parameter in docstring_parser.parse_from_object(base).params]
    return {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in documented}


def get_group(hint: Any) -> type | None:
    """The class of a nested group of settings; None for the type of a single setting."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def iter_parts(hint: Any) -> Iterator[Any]:
    """The types in an annotation, and their metadata."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        yield from metadata
        yield from iter_parts(inner)
    elif get_args(hint) and get_origin(hint) is not Literal:
        for argument in get_args(hint):
            yield from iter_parts(argument)
    else:
        yield hint
