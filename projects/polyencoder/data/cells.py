"""Reads the cells of a record: lists that are written as text, texts, and a context that has several columns."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any

from polyencoder.checks import check_candidate
from polyencoder.errors import InputError

_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_NUMPY_LIST = re.compile(rf"\[\s*{_TEXT}\s+{_TEXT}")


def parse_list(value: Any, *, where: str, numbers: bool = False) -> Any:
    """The list that a text spells in JSON or Python, else the value. InputError for a list as NumPy prints it."""
    if not isinstance(value, str) or not (text := value.strip()).startswith("[") or not text.endswith("]"):
        return value
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        if _NUMPY_LIST.match(text):
            raise InputError(
                f"{where}: {text:.60} is a list as NumPy prints it, without commas: write the column with json.dumps"
            ) from None
        try:
            items = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
    kinds = (int | float,) if numbers else (str, Mapping)
    return items if any(all(isinstance(item, kind) for item in items) for kind in kinds) else value


def is_empty(value: Any) -> bool:
    """Whether a cell is null, or has only white space or an empty list."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list) and not value)


def read_response(value: Any) -> str:
    """The text of a response. TypeError if it is empty, or no text."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"the response is {'empty' if isinstance(value, str) else type(value).__name__}, not a text")
    return value.strip()


def read_texts(value: Any, name: str) -> list[str]:
    """The texts of a list, or of a cell of CSV that joins them with |. TypeError if it is neither."""
    if is_empty(value):
        return []
    if isinstance(value, str):  # one cell of a CSV file
        value = value.split("|")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"the {name}s are not a list of texts (in CSV: joined by |)")
    return [check_candidate(f"{name} {position}", text).strip() for position, text in enumerate(value)]


def find_earlier_columns(record: Mapping[str, Any], column: str = "context") -> list[str]:
    """The columns of earlier turns, oldest first; `context/0` is the latest of them, as in PolyAI's datasets."""
    names = takewhile(record.__contains__, (f"{column}/{number}" for number in count()))
    return list(names)[::-1]


def join_earlier(record: Mapping[str, Any], column: str = "context") -> Any:
    """The context of a record: the turns of all of its columns, oldest first. InputError: a turn is no text."""
    value, earlier = record[column], [record[name] for name in find_earlier_columns(record, column)]
    if not earlier or not isinstance(value, str | None):
        return value
    if others := [turn for turn in earlier if not isinstance(turn, str | None)]:
        raise InputError(f"a turn before the last one of the context is {type(others[0]).__name__}, not a text")
    turns = (" ".join((turn or "").split()) for turn in (*earlier, value))  # each in one line, as in the tasks
    return [turn for turn in turns if turn]
