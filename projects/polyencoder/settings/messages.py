"""Formats pydantic's errors in one line: the setting, its value and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from polyencoder.errors import ConfigError, PolyencoderError, did_you_mean
from polyencoder.settings.fields import leaves

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "dataclass": "a mapping of settings",
    "missing": "two numbers with a comma",
    "too_long": "two numbers with a comma",
    "finite_number": "a finite number",
    "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
}
"""The required values, by the prefix of pydantic's error type."""


def config_error(error: ValidationError, *, of: type, path: tuple[str, ...] = ()) -> PolyencoderError:
    """Converts an error of pydantic to a ConfigError in one line: names, values, and what they must be.

    `path`: that of the setting, if it was validated alone.
    """
    names = {leaf.path: name for name, leaf in leaves(of).items()}
    wanted: dict[str, dict[str, None]] = {}
    values: dict[str, Any] = {}
    for one in error.errors(include_url=False):
        place = (*path, *map(str, one["loc"]))
        context = one.get("ctx", {})
        name = next((names[place[:end]] for end in range(len(place), 0, -1) if place[:end] in names), ".".join(place))
        if isinstance(own := context.get("error"), PolyencoderError):
            return own
        if one["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            return ConfigError(_unknown(name, names), argument=name)
        if one["type"].startswith("missing") and place[:-1] not in names:
            return ConfigError(f"{name} is missing: give it", argument=name)
        words = next((words for kind, words in _WORDS.items() if one["type"].startswith(kind)), one["msg"])
        choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
        words = words.format(**context | ({"expected": choices} if "," in choices else {}))
        wanted.setdefault(name, {})[words if "," in choices else words.removeprefix("one of ")] = None
        values[name] = one["input"]
    musts = {
        name: " or ".join(words) if len(words) > 1 else "".join(words).strip("'") for name, words in wanted.items()
    }
    lines = [f"{name} is {_shown(values[name])}; it must be {must}" for name, must in musts.items()]
    return ConfigError("; and ".join(lines), argument=next(iter(wanted)))


def _shown(value: Any) -> str:
    """Formats a value for a message; numbers of a command line without quotes."""
    if type(value) is tuple:
        value = ",".join(map(str, value))
    try:
        float(value)
    except (TypeError, ValueError):
        return f"{value!r:.60}"
    return str(value)


def _unknown(name: str, known: Mapping[tuple[str, ...], str]) -> str:
    hint = did_you_mean(name, [*known.values(), *map(".".join, known)], listed=False, shown=repr)
    return f"unknown setting {name!r}{hint or did_you_mean(name, known.values())}"
