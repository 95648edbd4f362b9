"""Filters by metadata on the command line: `lang=en`, `year>=2020`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from polyencoder.checks import explain_unencodable, find_lone_surrogate
from polyencoder.errors import InputError
from polyencoder.index.filters import Filter

_OPERATORS = {"=": "$in", "!=": "$nin", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_TEST = re.compile(r"(.+?)(>=|<=|!=|=|>|<)(.*)", re.DOTALL)


def read_filter(tests: Sequence[str], *, flag: str = "--filter") -> Filter | None:
    """The filter of tests such as `lang=en`, `n=3` and `year>=2020`; None for no test.

    A value after = or != that is a number, a boolean or null in JSON means the text, too: a table's numbers may be
    text. After the other signs it means the number alone; with quotation marks, as in `"2020"`, it is a text.
    """
    alternatives: dict[str, list[Any]] = {}
    filters: list[dict[str, Any]] = []
    for test in tests:
        if problem := explain_unencodable(test):
            raise InputError(f"{flag}: {problem}")
        if (match := _TEST.fullmatch(test)) is None:
            raise InputError(f"{flag} {test}: must be KEY=VALUE, such as {flag} lang=en, or KEY>=VALUE")
        key, sign, text = match.groups()
        values = _parse_meanings(text, f"{flag} {test}")
        if sign == "=":
            alternatives.setdefault(key, []).extend(values)
        else:
            filters.append({key: {_OPERATORS[sign]: values if sign == "!=" else values[-1]}})
    filters += [{key: values} for key, values in alternatives.items()]
    return {"$and": filters} if filters else None


def _parse_meanings(text: str, where: str) -> list[Any]:
    """The meanings of a value: the text and, if it is JSON, its value."""
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except ValueError:
        return [text]
    if problem := find_lone_surrogate(value):
        raise InputError(f"{where}: {problem}")
    return [text] if isinstance(value, (list, dict)) else [text, value]


def _reject_constant(name: str) -> NoReturn:
    """Rejects NaN and Infinity, which Python reads as numbers but JSON does not have."""
    raise ValueError(name)
