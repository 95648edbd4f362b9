"""Candidates as rows of a table in PostgreSQL's binary formats, their words, and filters as SQL with bound values."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from polyencoder.index.entries import format_metadata
from polyencoder.index.filters import Filter
from polyencoder.index.rows import Entry, hash_id, round_norm_up
from polyencoder.index.terms import list_bounds, list_terms, write_filter
from polyencoder.index.words import split_into_words

_MAX_POSITIONS, _LAST_POSITION, _MAX_BYTES, _LONGEST_WORD = 255, 16_383, 1 << 20, 2046  # of a tsvector
_TEXT = 25  # the number of PostgreSQL's type


def check_entry(entry: Entry, metadata: str) -> None:
    """Raises ValueError for what PostgreSQL cannot hold."""
    for name, value in {"id": entry.id, "text": entry.text}.items():
        value.encode()  # raises ValueError for a lone surrogate
        if "\0" in value:
            raise ValueError(f"its {name} has the character NUL, which PostgreSQL cannot hold")


def format_tsvector(text: str) -> bytes:
    """The words of a text and their positions as PostgreSQL's tsvector, in its binary format; the first MB of them."""
    occurrences: dict[bytes, list[int]] = {}
    size = 0
    for position, word in enumerate(split_into_words(text), start=1):
        written_word = word.encode()
        size += len(written_word) + 8
        if len(written_word) <= _LONGEST_WORD and size <= _MAX_BYTES:
            occurrences.setdefault(written_word, []).append(min(position, _LAST_POSITION))
    parts = [struct.pack(">i", len(occurrences))]
    for written_word, positions in occurrences.items():
        distinct = [*dict.fromkeys(positions)][:_MAX_POSITIONS]
        parts.append(written_word + b"\0" + struct.pack(f">{len(distinct) + 1}H", len(distinct), *distinct))
    return b"".join(parts)


def format_tsquery(word: str) -> str:
    """One of `split_query_words` as PostgreSQL's tsquery: words have no quotation marks."""
    return " <-> ".join(f"'{part}'" for part in word.split(" "))


def write_row(entry: Entry, vector: np.ndarray[Any, Any], *, words: bool = False) -> tuple[bytes | None, ...]:
    """A row in the formats of COPY: key, id, text, metadata, terms, bounds, norm, vector (float32 [dim]), words."""
    metadata = format_metadata(entry.metadata)
    return (
        hash_id(entry.id).encode(),
        entry.id.encode(),
        entry.text.encode(),
        None if metadata is None else metadata.encode(),
        _write_array([term.encode() for term in list_terms(entry.metadata)]),
        b"\1" + json.dumps(list_bounds(entry.metadata)).encode(),  # the version of jsonb's format, and its text
        np.array(round_norm_up(vector), dtype=">f4").tobytes(),
        np.array([len(vector), 0], dtype=">i2").tobytes() + vector.astype(">f4").tobytes(),
        *([format_tsvector(entry.text)] if words else []),
    )


def _write_array(texts: list[bytes]) -> bytes:
    dimensions = struct.pack(">ii", len(texts), 1) if texts else b""
    head = struct.pack(">iiI", 1 if texts else 0, 0, _TEXT) + dimensions
    return head + b"".join(struct.pack(">i", len(text)) + text for text in texts)


def write_condition(filter: Filter | None) -> tuple[str, dict[str, Any]]:
    """A filter in SQL, with named placeholders and their values. Errors as in `parse_filter`."""
    values: dict[str, Any] = {}

    def add_placeholder(value: Any) -> str:
        values[name := f"filter{len(values)}"] = value
        return f"%({name})s"

    text = write_filter(
        filter,
        any_of=lambda terms: f"terms && {add_placeholder(terms)}::text[]",
        compare=lambda name, sign, bound: (
            f'bounds ->> {add_placeholder(name)} COLLATE "C" {sign} {add_placeholder(bound)}'
        ),
    )
    return text or "TRUE", values
