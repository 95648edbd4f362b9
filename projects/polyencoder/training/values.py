"""Values of settings, as flags, YAML files and Python give them: known names, the types of fields, and their limits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from polyencoder.errors import ConfigError

__all__ = ["ABOVE_0", "AT_LEAST_0", "AT_LEAST_1", "SHARE", "Limit", "check_limits", "check_types", "checked_values"]


class Limit(NamedTuple):
    """What a number must be, in words, and whether it is that."""

    words: str
    holds: Callable[[float], bool]


ABOVE_0 = Limit("above 0", lambda value: value > 0)
AT_LEAST_0 = Limit("at least 0", lambda value: value >= 0)
AT_LEAST_1 = Limit("at least 1", lambda value: value >= 1)
SHARE = Limit("at least 0 and below 1", lambda value: 0 <= value < 1)


def check_limits(settings: Any, limits: Mapping[str, Limit]) -> None:
    """Raise ConfigError, which names all of them, for numbers of a dataclass that are not finite or break a limit."""
    wrong = {}
    for name, value in vars(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            wrong[name] = f"{name} is {value}; it must be a finite number"
        elif isinstance(value, int | float) and name in limits and not limits[name].holds(value):
            wrong[name] = f"{name} is {value}; it must be {limits[name].words}"
    if wrong:
        raise ConfigError("; and ".join(wrong.values()), argument=next(iter(wrong)))


def check_types(settings: Any, *, but: Iterable[str] = ()) -> None:
    """Raise ConfigError for a value of a frozen dataclass of settings that is of another type than its field.

    Whole numbers become floats, and paths texts, where a field has these. None is what it is by default.
    """
    kinds = get_type_hints(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in but or (value is None and field.default is None):
            continue
        typed = _typed(value, kinds[field.name], name=field.name, origin=None)
        object.__setattr__(settings, field.name, typed)


def checked_values(settings: type, values: Mapping[str, Any], *, origin: str | None) -> dict[str, Any]:
    """These values of fields of a dataclass of settings.

    Args:
        values: such as a YAML file holds; of a number that YAML takes for a text, `5e-5`, the text.
        origin: where they come from, for messages; None for arguments.

    Raises:
        ConfigError: a name is unknown, or a value is none for it.
    """
    kinds = get_type_hints(settings)
    if unknown := sorted(set(values) - set(kinds)):
        raise ConfigError(f"{origin}: unknown setting {unknown[0]!r}{_meant(unknown[0], list(kinds))}")
    return {name: _typed(value, kinds[name], name=name, origin=origin) for name, value in values.items()}


def _meant(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _typed(value: Any, kind: Any, *, name: str, origin: str | None) -> Any:
    """A value as one of its type; ConfigError for another."""
    options = [kind] if get_origin(kind) is Literal or not get_args(kind) else get_args(kind)
    for option in options:
        if get_origin(option) is Literal:
            fits = value in get_args(option)
        elif option is float and not isinstance(value, bool):
            with suppress(TypeError, ValueError):
                return float(value)
            fits = False
        elif option is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        else:
            fits = isinstance(value, option) and (option is bool or not isinstance(value, bool))
        if fits:
            return value
    wanted = [word for option in options if option is not NoneType for word in _words(option)]
    where = "" if origin is None else f"{origin}: "
    raise ConfigError(
        f"{where}{name} is {value!r:.60}; it must be {' or '.join(wanted)}", argument=name if origin is None else None
    )


def _words(option: Any) -> list[str]:
    if get_origin(option) is Literal:
        choices = get_args(option)
        return [f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])]
    return [{int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[option]]
