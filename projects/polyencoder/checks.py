"""Argument validation at the API boundary, so that errors name the argument instead of a line deep inside."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from polyencoder.errors import ConfigError, InputError, get_first_line

if TYPE_CHECKING:
    import torch

DEEPEST = 100
"""Levels of lists and objects inside each other that JSON from outside may have."""

_ADDRESS = re.compile(r"([A-Za-z][\w+.-]+):", re.ASCII)  # a single letter is a disk of Windows


def check_count(name: str, value: Any, *, min_value: int = 1, max_value: int | None = None) -> int:
    """Checks a whole number, Python's or numpy's, from `min_value` to `max_value`. Raises InputError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < min_value:
        raise InputError(
            f"{name} is {format_value(value)}; it must be at least {min_value}, a whole number", argument=name
        )
    if max_value is not None and number > max_value:
        raise InputError(f"{name} is too large; it must be at most {max_value:,}", argument=name)
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ConfigError, with the choices, unless the value is one of them."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r:.60}; it must be one of {', '.join(choices)}", argument=name)


def check_list(name: str, values: Any, *, of: str = "texts") -> list[Any]:
    """Converts a sequence (list, tuple, numpy array, pandas column) to a list.

    Raises:
        InputError: it is something else: one text, whose characters would be taken for texts, a dict, a set, a number.
    """
    if isinstance(values, (str, bytes)):
        raise InputError(f"{name} is one text; give a list of {of}")
    if (items := _list_items(values)) is None:
        raise InputError(f"{name} is {format_value(values)}; it must be a list of {of}")
    return items


def check_texts(name: str, values: Any) -> list[str]:
    """Converts a sequence of texts (see `check_list`) to a list of `str`. InputError for other texts, or no texts."""
    singular = name.removesuffix("s")
    return [check_text(f"{singular} {idx}", value) for idx, value in enumerate(check_list(name, values))]


def check_candidates(name: str, values: Any) -> list[str]:
    """Like `check_texts`, for candidates to rank: each needs a word."""
    singular = name.removesuffix("s")
    return [check_candidate(f"{singular} {idx}", value) for idx, value in enumerate(check_list(name, values))]


def check_iterable(name: str, values: Any, *, of: str) -> Iterable[Any]:
    """Checks an iterable, such as a generator. Raises InputError for anything else, a table, a single text or dict."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable) or _is_table(values):
        what = "is one text" if isinstance(values, (str, bytes)) else f"is {format_value(values)}"
        raise InputError(f"{name} {what}; give a list of {of}")
    return values


def check_text(name: str, value: Any) -> str:
    """Converts a text that can be encoded to a plain `str`. Raises InputError that names it."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {format_value(value)}; it must be a text")
    if problem := explain_unencodable(value):
        raise InputError(f"{name}: {problem}")
    return str(value)


def check_candidate(name: str, value: Any) -> str:
    """Checks a text to rank: it can be encoded and has a word. Raises InputError that names it."""
    text = check_text(name, value)
    if is_blank(text):
        raise InputError(f"{name} is empty: leave it out, as a model would score it like any text")
    return text


def is_blank(text: str) -> bool:
    """Whether a text is blank: only spaces, control characters and marks such as zero-width spaces."""
    return all(character.isspace() or category(character) in ("Cc", "Cf") for character in text)


def check_device(name: torch.device | str) -> torch.device:
    """Checks that this machine has the device. Raises ConfigError."""
    import torch  # here: the other checks need none

    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it computes nothing")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA here")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ConfigError(
            f"device {str(name)!r:.60} cannot be used ({get_first_line(error):.120}); give cpu, or cuda where there is "
            "a GPU, or leave it out",
            argument="device",
        ) from None
    return device


def parse_number(text: str) -> float | None:
    """The number that a text is, or None. Unlike `float`, refuses `1_0`, which has digits apart by mistake."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def explain_unencodable(text: str) -> str | None:
    r"""The problem of a text with a lone surrogate, such as "\ud83d", which JSON can hold; None without one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"character {error.start + 1} of {text[:40]!a} is half of one (a lone surrogate, {text[error.start]!a}), "
            "which cannot be read: leave it out"
        )
    return None


def find_lone_surrogate(value: Any) -> str | None:
    """The problem of the first text or key with a lone surrogate in a value from JSON; None without one."""
    problem = find_json_problem(value, finite=False)
    return None if problem is None else problem[1]


def find_json_problem(value: Any, *, finite: bool = True) -> tuple[str, str] | None:
    """The path, such as `documents.0`, and the problem of an invalid value from JSON; None if it is valid.

    Texts and keys must be without lone surrogates, and at most `DEEPEST` lists and objects inside each other, as other
    parsers and serializers fail at more. With `finite` a number must not be nan or infinity, which JSON lacks.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, str):
            if problem := explain_unencodable(part):
                return ".".join(map(str, path)), problem
        elif finite and isinstance(part, float) and not math.isfinite(part):
            return ".".join(map(str, path)), f"is {part}; nan and infinity cannot be kept, leave it out"
        elif isinstance(part, (dict, list, tuple)):
            if len(path) >= DEEPEST:
                return ".".join(map(str, path[:3])), f"is nested more than {DEEPEST} levels deep: keep fewer"
            keys = part if isinstance(part, dict) else ()
            for key in keys:
                if not isinstance(key, str):  # JSON would make it a text, which may be a key already
                    return ".".join(map(str, path)), f"has the key {format_value(key)}, which is no text"
            inside = part.items() if isinstance(part, dict) else enumerate(part)
            children = [(path, key) for key in keys if _needs_check(key)]
            children += [((*path, key), part) for key, part in inside if _needs_check(part)]
            waiting += reversed(children)
    return None


def _needs_check(value: Any) -> bool:
    """Whether a part of JSON needs checking: most are whole numbers and ASCII."""
    return not value.isascii() if isinstance(value, str) else isinstance(value, (dict, list, tuple, float))


def check_place(name: str, value: Any, *, addresses: tuple[str, ...] = ()) -> None:
    """ConfigError for an invalid name of a file or folder; `addresses` are schemes that are accepted, too."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if text is None:
        raise ConfigError(f"{name} is {format_value(value)}; it must be a text or a path", argument=name)
    if not text.strip():
        raise ConfigError(f"{name} is empty: give the name of a folder or a file", argument=name)
    try:
        too_long = any(len(os.fsencode(part)) > 255 for part in Path(text).parts) or len(os.fsencode(text)) > 4095
    except UnicodeEncodeError:
        too_long = True
    if too_long or "\0" in text:
        raise ConfigError(f"{name} {text[:60]!a}... is not a valid file name: give another", argument=name)
    scheme, redacted = _ADDRESS.match(text), hide_password(text)
    if scheme and scheme[1] not in addresses and not os.path.exists(text):
        schemes = f", or {', '.join(f'{accepted}:' for accepted in addresses)} and an address" if addresses else ""
        raise ConfigError(
            f"{name} {redacted[:60]!r} looks like an address, and {scheme[1]}: is not a known one: give the name "
            f"of a folder or a file{schemes}; one of this name is ./{redacted[:60]}",
            argument=name,
        )


def hide_password(address: str) -> str:
    """Removes a possible password from a URL, for messages."""
    scheme, slashes, rest = address.partition("://")
    if not slashes:
        return address
    login, at, location = rest.rpartition("@")
    path, _, name = location.partition("#")
    if "?" in login and "/" in login:  # the @ belongs to a query, or to a password
        return f"{scheme}://{re.split('[:/?]', login)[0]}/...{'#' + name if name else ''}"
    return f"{scheme}://{login.partition(':')[0]}{at}{path.partition('?')[0]}{'#' + name if name else ''}"


def _list_items(values: Any) -> list[Any] | None:
    """The items of a sequence; None for anything else: a dict or a set, which are unordered, or a single value."""
    if isinstance(values, (bytes, Mapping, set, frozenset)) or not hasattr(values, "__len__"):
        return None
    if _is_table(values):
        return None
    try:
        return list(values)
    except TypeError:  # of an array of no dimension
        return None


def _is_table(values: Any) -> bool:
    """Whether it is an array or table without exactly one dimension: pandas' tables give the names of their columns."""
    return getattr(values, "ndim", 1) != 1


def format_value(value: Any) -> str:
    """Formats a value and its type for a message."""
    text = " ".join(f"{value!r}".split())  # in one line
    return f"{text:.60} ({type(value).__name__})"
