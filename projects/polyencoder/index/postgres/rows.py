"""Candidates as rows of a table, and filters as SQL conditions with bound values.

A field of the metadata passes if it, or an element of its list, equals a value in JSON: text, number and boolean are
never equal, 1 and 1.0 are. jsonb has numbers of any size, but normalizes them: a whole float keeps a decimal point
here, so it stays a float.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import numpy as np

from polyencoder.index.entries import canonical
from polyencoder.index.filters import Filter, checked_filter
from polyencoder.index.rows import Entry, key_of
from polyencoder.index.words import words_of

_TEXT_OR_WHOLE_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?e\+\d+|-0\.0(?!\d)')
_MOST_PLACES, _LAST_PLACE, _MOST_BYTES, _LONGEST_WORD = 255, 16_383, 1 << 20, 2046  # of a tsvector
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def kept_metadata(id_: str, text: str, metadata: str) -> dict[str, Any]:
    """The metadata that PostgreSQL stores. Raises ValueError for what it cannot hold."""
    id_.encode()  # raises ValueError for a lone surrogate
    has_nul = {"id": "\0" in id_, "text": "\0" in text, "metadata": _NUL.search(metadata) is not None}
    if name := next((name for name, has in has_nul.items() if has), None):
        raise ValueError(f"its {name} has the character NUL, which PostgreSQL cannot hold")
    fields: dict[str, Any] = json.loads(written(metadata))
    return fields


def written(text: str) -> str:
    """JSON that jsonb returns unchanged: whole floats of 1e16 and more with all digits and a decimal point."""

    def number(found: re.Match[str]) -> str:
        part = found[0]
        return part if part.startswith('"') else "0.0" if part == "-0.0" else f"{int(float(part))}.0"

    return _TEXT_OR_WHOLE_FLOAT.sub(number, text)


def tsvector(text: str) -> bytes:
    """The words of a text and their places as PostgreSQL's tsvector, in its binary format; the first MB of them."""
    places: dict[bytes, list[int]] = {}
    size = 0
    for place, word in enumerate(words_of(text), start=1):
        written_word = word.encode()
        size += len(written_word) + 8
        if len(written_word) <= _LONGEST_WORD and size <= _MOST_BYTES:
            places.setdefault(written_word, []).append(min(place, _LAST_PLACE))
    parts = [struct.pack(">i", len(places))]
    for written_word, own in places.items():
        kept = [*dict.fromkeys(own)][:_MOST_PLACES]
        parts.append(written_word + b"\0" + struct.pack(f">{len(kept) + 1}H", len(kept), *kept))
    return b"".join(parts)


def tsquery(word: str) -> str:
    """One of `query_words` as PostgreSQL's tsquery: words have no quotation marks."""
    return " <-> ".join(f"'{part}'" for part in word.split(" "))


def copied(entry: Entry, vector: np.ndarray[Any, Any], *, words: bool = False) -> tuple[bytes | None, ...]:
    """A row in the binary formats of COPY: key, id, text, metadata, norm, vector (float32 [dim]), perhaps words."""
    metadata = canonical(entry.metadata)
    norm = np.nextafter(np.float32(np.linalg.norm(vector.astype(np.float64))), np.float32(np.inf))
    return (
        key_of(entry.id).encode(),
        entry.id.encode(),
        entry.text.encode(),
        None if metadata is None else b"\x01" + written(metadata).encode(),  # the version of jsonb's format
        np.array(norm, dtype=">f4").tobytes(),
        np.array([len(vector), 0], dtype=">i2").tobytes() + vector.astype(">f4").tobytes(),
        *([tsvector(entry.text)] if words else []),
    )


def condition(filter: Filter | None) -> tuple[str, dict[str, Any]]:
    """A filter in SQL, with named placeholders and their values. Errors are those of `checked_filter`."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    for i, (key, options) in enumerate(checked_filter(filter).items()):
        if "\0" in key:  # no row has such a field, and a missing one equals null
            parts.append("TRUE" if None in options else "FALSE")
            continue
        parts.append(
            f"(COALESCE(metadata -> %(key{i})s::text, 'null') = ANY(%(any{i})s::text[]::jsonb[]) "
            f"OR metadata -> %(key{i})s::text @> ANY(%(within{i})s::text[]::jsonb[]))"
        )
        values[f"key{i}"] = key
        values[f"any{i}"] = [
            written(json.dumps(option, ensure_ascii=False))
            for option in options
            if not (isinstance(option, str) and "\0" in option)
        ]
        values[f"within{i}"] = [one for one in values[f"any{i}"] if one != "null"]
    return " AND ".join(parts) or "TRUE", values
