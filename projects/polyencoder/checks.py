"""What callers give, looked at where it comes in: so that an error names the argument, not a line deep inside."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyencoder.errors import InputError

__all__ = ["checked_context", "checked_count", "checked_text", "checked_texts", "unencodable"]


def checked_count(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number of at least `least`, Python's or numpy's. Raises InputError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise InputError(f"{name} is {_shown(value)}; it must be at least {least}, a whole number")
    return number


def checked_texts(name: str, values: Any) -> list[str]:
    """A sequence of texts, such as a list, a tuple, numpy's array or a column of pandas, as a list of `str`.

    Raises:
        InputError: it is something else, or one of them is no text or cannot be encoded.
    """
    one = name.removesuffix("s")
    if isinstance(values, (str, bytes)):
        raise InputError(f"{name} is one text; give a list of texts")
    if isinstance(values, (Mapping, set, frozenset)) or not (
        isinstance(values, (Sequence, Iterable)) and hasattr(values, "__len__")
    ):
        raise InputError(f"{name} is {_shown(values)}; it must be a list of texts")
    return [checked_text(f"{one} {place}", value) for place, value in enumerate(values)]


def checked_text(name: str, value: Any) -> str:
    """A text that can be encoded, as a plain `str`. Raises InputError that names it."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {_shown(value)}; it must be a text")
    if problem := unencodable(value):
        raise InputError(f"{name}: {problem}")
    return str(value)


def checked_context(name: str, value: Any) -> list[str]:
    """The turns of a context: one text, or a list of them with a word in at least one. Raises InputError."""
    if isinstance(value, str):
        turns = [checked_text(name, value)]
    elif isinstance(value, (bytes, Mapping, set, frozenset)) or not hasattr(value, "__len__"):
        raise InputError(f"{name} is {_shown(value)}; it must be a text or a list of turns")
    else:
        turns = [checked_text(f"{name}, turn {place}", turn) for place, turn in enumerate(value)]
    if not any(turn.strip() for turn in turns):
        raise InputError(f"{name} is empty: it has no text in any of its turns")
    return turns


def unencodable(text: str) -> str | None:
    r"""What is wrong with a text that has half a character, such as "\ud83d", which JSON can hold; None if nothing."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"character {error.start + 1} of {text[:40]!a} is half of one (a lone surrogate, {text[error.start]!a}), "
            "which cannot be read: leave it out"
        )
    return None


def _shown(value: Any) -> str:
    text = f"{value!r}"
    return f"{text:.60} ({type(value).__name__})"
