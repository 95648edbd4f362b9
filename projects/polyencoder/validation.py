"""Dataclasses that pydantic validates; its errors in one line of ours: the setting, its value, what it must be."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import dataclass_transform  # typing's, from Python 3.11 on

from polyencoder.errors import ConfigError, PolyencoderError, suggest_similar
from polyencoder.guesses import explain_removed

T = TypeVar("T")

LARGEST = 10**18
"""Whole numbers are below it: numpy's and torch's have 64 bits."""

Whole = Annotated[int, Field(gt=-LARGEST, lt=LARGEST)]
Count = Annotated[int, Field(ge=1, lt=LARGEST)]
AtLeastZero = Annotated[int, Field(ge=0, lt=LARGEST)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "an object",
    "dataclass": "a mapping of settings",
    "missing": "two numbers with a comma",
    "too_long": "two numbers with a comma",
    "too_short": "of at least {min_length}",
    "finite_number": "a finite number",
    "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
}
"""The required values, by the prefix of pydantic's error type."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def validated(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass of exactly the declared types and names, or else ConfigError."""
    checked: Any = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=_STRICT)
    return raise_config_errors(checked)


def from_json_values(cls: type[T], values: Any) -> T:
    """Makes a validated dataclass, and those inside it, of JSON's values. Raises ConfigError."""
    try:
        return TypeAdapter(cls).validate_json(json.dumps(values))
    except ValidationError as error:
        raise convert_error(error, of=cls) from None


def raise_config_errors(cls: type[T]) -> type[T]:
    """Makes a pydantic dataclass raise our errors; see `convert_error`."""
    build: Any = cls.__init__

    @functools.wraps(build)
    def init(self: T, **values: Any) -> None:
        try:
            build(self, **values)
        except ValidationError as error:
            raise convert_error(error, of=cls) from None

    cls.__init__ = init  # type: ignore[assignment]
    return cls


def convert_error(error: ValidationError, *, of: type, path: tuple[str, ...] = ()) -> PolyencoderError:
    """Converts an error of pydantic to a ConfigError in one line.

    If the validated class `of` has a method `field_names`, that gives the names of its fields by their paths. `path` is
    the field's, if it was validated alone.
    """
    names: Mapping[tuple[str, ...], str] = of.field_names() if hasattr(of, "field_names") else {}
    allowed: dict[str, dict[str, None]] = {}
    values: dict[str, Any] = {}
    for detail in error.errors(include_url=False):
        location, context = (*path, *detail["loc"]), detail.get("ctx", {})
        if isinstance(raised := context.get("error"), PolyencoderError):
            return raised
        fields, owner = _find_fields(of, location)
        if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            name = ".".join(map(str, location))
            hint = explain_removed(str(location[-1]))
            hint = hint or suggest_similar(name, [*names.values(), *map(".".join, names)], listed=False, shown=repr)
            hint = hint or suggest_similar(str(location[-1]), names.values() or _get_fields(owner))
            return ConfigError(f"unknown setting {name!r}{hint}", argument=name)
        name = names.get(fields, ".".join(fields)) or "it"
        if detail["type"].startswith("missing") and isinstance(location[-1], str):
            return ConfigError(f"{name} is missing: give it", argument=name)
        words = next((words for kind, words in _WORDS.items() if detail["type"].startswith(kind)), detail["msg"])
        choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
        words = words.format(**context | ({"expected": choices} if "," in choices else {}))
        allowed.setdefault(name, {})[words if "," in choices else words.removeprefix("one of ")] = None
        values[name] = detail["input"]
    musts = {
        name: " or ".join(words) if len(words) > 1 else "".join(words).strip("'") for name, words in allowed.items()
    }
    format_value = _format_value if names else repr
    lines = [f"{name} is {format_value(values[name]):.60}; it must be {must}" for name, must in musts.items()]
    return ConfigError("; and ".join(lines), argument=next(iter(allowed)))


def _find_fields(of: Any, location: Iterable[Any]) -> tuple[tuple[str, ...], Any]:
    """The fields on the path of an error, which also has numbers and types, and the dataclass of the last."""
    path: list[str] = []
    for name in location:
        if name in _get_fields(of):
            path.append(name)
            hint = get_type_hints(of)[name]
            of = next((part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)), None)
    return tuple(path), of


def _get_fields(of: Any) -> Mapping[str, Any]:
    return getattr(of, "__dataclass_fields__", {})


def _format_value(value: Any) -> str:
    """Formats a value of a command line: numbers without quotes."""
    if type(value) is tuple:
        value = value[0] if len(value) == 1 else ",".join(map(str, value))
    try:
        float(value)
    except (TypeError, ValueError):
        return repr(value)
    return str(value)
