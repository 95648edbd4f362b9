"""Values of settings as flags and YAML files give them: known names, and the types of a dataclass's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from polyencoder.errors import ConfigError

__all__ = ["checked_values"]


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
