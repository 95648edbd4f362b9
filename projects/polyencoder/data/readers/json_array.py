"""Streams the objects of a large JSON array, such as the DSTC7 files."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from polyencoder.checks import find_lone_surrogate
from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, open_source
from polyencoder.errors import InputError
from polyencoder.packages import require

CHUNK = 1 << 16
NEXT_OBJECT = re.compile(rb"\}[ \t\r]*\n\s*\{")  # nowhere in one JSON value, but between any two JSON lines


def iter_json_array(source: Source, *, bad: OnBad = raise_it) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a top-level array with their places: (`file.json, example 12`, {...}), from 1.

    Numbers are int (64 bits) and float. Memory holds a few objects at a time, whatever the length of the array. bad:
    gets the error of an element that is not an object; of a file that holds something other than an array, and of one
    that is damaged, cut off or not JSON from some example on.

    Raises:
        ConfigError: ijson is not installed.
        InputError: a file that cannot be opened, and what `bad` raises.
    """
    ijson = require("ijson", extra="data")  # it takes the fastest of its backends that works here
    number = 0
    with open_source(source) as file:
        try:
            if not holds_array(file):
                bad(InputError(f"{file.path}: {_describe_head(file.peek())}"))
                return
            # `read` would throw away the good bytes before a damaged one; `read1` gives them.
            chunks = SimpleNamespace(read=file.read1)
            for number, record in enumerate(ijson.items(chunks, "item", use_float=True, buf_size=CHUNK), start=1):
                where = f"{file.path}, example {number}"
                if not isinstance(record, dict):
                    bad(InputError(f"{where}: not a JSON object, but {record!r:.60}"))
                elif problem := find_lone_surrogate(record):
                    bad(InputError(f"{where}: {problem}"))
                else:
                    yield where, record
        except DamagedFile as error:
            bad(DamagedFile(f"{error}; example {number} is the last whole one"))
        except ijson.JSONError as error:
            bad(DamagedFile(f"{file.path}, example {number + 1}: not valid JSON, or cut off ({_format_reason(error)})"))


def holds_array(file: DataFile) -> bool:
    """Whether an unread file begins like a JSON array. Drops a byte order mark."""
    try:
        if file.peek().startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
        return file.peek().lstrip().startswith(b"[")
    except DamagedFile:
        return False  # reading it meets the damage again


def _describe_head(head: bytes) -> str:
    """The error message for a file that does not begin with an array."""
    if not head.strip():
        return "is empty, not a JSON array of examples"
    if not head.lstrip().startswith(b"{"):
        return f"not a JSON array of examples, but begins with {head.lstrip()[:20]!r}"
    if NEXT_OBJECT.search(head):
        return "holds JSON lines, not one JSON array of examples; put them between [ and ], with a comma between two"
    return "holds one JSON object, not an array of examples; give the array that is in it"


def _format_reason(error: Exception) -> str:
    """ijson's message in one line, without the position that the yajl library draws below it."""
    message = error.args[0] if error.args else ""
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    what, *picture = [line.strip() for line in text.splitlines()] or [type(error).__name__]
    return f"{what}: {picture[0]}" if picture and picture[0] else what
