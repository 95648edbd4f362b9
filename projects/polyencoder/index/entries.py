"""`Candidate`: what callers put into an index, and its checks: text, id, and metadata as canonical JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np

from polyencoder.checks import check_iterable, find_json_problem, is_blank
from polyencoder.errors import InputError


class Candidate(NamedTuple):
    """A candidate to put into an index."""

    id: str | None
    """Unique in the index; None: derived from the text and the metadata, so that equal records are one entry."""
    text: str
    metadata: dict[str, Any] | None = None
    """Any JSON object; searches can filter by its fields."""
    where: str = ""
    """The candidate's file and line, for messages."""
    vector: np.ndarray[Any, Any] | None = None
    """The candidate's vector, [dim], if it exists already; None: the index's model encodes the text."""


WriteMode = Literal["add", "update", "put"]
"""New, a replacement, or either."""

Record = str | Mapping[str, Any] | Candidate
"""A candidate as callers may pass it: a text, a dict with `text`, `id`, `metadata` and optionally `vector`, or a
`Candidate`."""


def check_records(records: Iterable[Record]) -> Iterator[Candidate]:
    """Yields each record as a `Candidate`. Raises InputError for anything but a list of records."""
    if isinstance(records, Candidate):
        raise InputError("candidates is one record; give a list of records")
    items = check_iterable("candidates", records, of="texts or of records with `text`, `id` and `metadata`")
    return (_convert_record(record, where=f"candidate {position}") for position, record in enumerate(items))


def convert_id(value: Any) -> Any:
    """Converts a whole number to text, as ids are; anything else is unchanged."""
    return str(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value


def _convert_record(record: Any, *, where: str) -> Candidate:
    if isinstance(record, Candidate):
        return record._replace(id=convert_id(record.id)) if record.id is not None else record
    if isinstance(record, str):
        return Candidate(None, record)
    if not isinstance(record, Mapping):
        raise InputError(f"{where} is {record!r:.60}; it must be a text, or a dict with `text`, `id` and `metadata`")
    if "text" not in record:
        raise InputError(f"{where} is {record!r:.60}; it has no `text`")
    if unknown := [key for key in record if key not in ("text", "id", "metadata", "vector")]:
        raise InputError(f"{where} has {unknown[0]!r:.60} beside `text`, `id` and `metadata`: put it into its metadata")
    return Candidate(convert_id(record.get("id")), record["text"], record.get("metadata"), where, record.get("vector"))


def format_metadata(metadata: dict[str, Any] | None) -> str | None:
    """Metadata as canonical JSON. Numbers of numpy are numbers; dates and times become text.

    Raises ValueError for anything but a dict with texts as keys, for lone surrogates and too many levels (see
    `find_json_problem`), and for values that JSON lacks: nan, infinity, sets.
    """
    if not metadata:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        raise ValueError(f"its metadata is {metadata!r:.60}; it must be a dict with texts as keys")
    if problem := find_json_problem(metadata):
        raise ValueError(" ".join(["its metadata", *filter(None, problem)]))
    try:
        return _format_json(metadata)
    except (TypeError, ValueError):
        for key, value in metadata.items():
            try:
                _format_json(value)
            except (TypeError, ValueError) as error:
                why = error if isinstance(error, TypeError) else "nan and infinity cannot be kept, leave it out"
                raise ValueError(f"its {key!r} is {value!r:.60}; {why}") from None
        raise


def _format_json(value: Any) -> str:
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=convert_value
    )


def convert_value(value: Any) -> Any:
    """Converts a value that JSON lacks to a value that it has. TypeError if none fits."""
    if isinstance(value, (np.generic, np.ndarray)):
        if value.dtype in ("M8[ns]", "m8[ns]"):  # NumPy would make a number of it; Python's times have microseconds
            value = value.astype(f"{value.dtype.kind}8[us]")
        return value.tolist()
    if isinstance(value, (date, time, timedelta, Decimal, UUID)):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}: give a text, a number, true, false, null, a list or a dict")


def check_candidate(candidate: Candidate) -> tuple[str, str, str | None]:
    """Returns the text, the id and the metadata's JSON; raises ValueError if one is invalid."""
    text, id_ = candidate.text, candidate.id
    if not isinstance(text, str) or is_blank(text):
        raise ValueError("its text is empty" if isinstance(text, str) else f"its text is {text!r}")
    metadata = format_metadata(candidate.metadata)
    if id_ is None:
        id_ = hashlib.blake2b(f"{text}\0{metadata or ''}".encode(), digest_size=10).hexdigest()
    if not isinstance(id_, str) or not id_:
        raise ValueError(f"its id is {id_!r}; it must be text that is not empty")
    return text, id_, metadata


def build_duplicate_id_error(candidate: Candidate, id_: str, text: str, *, other: str) -> InputError:
    """The error for a new candidate whose id belongs to a candidate with this text."""
    where = f"{candidate.where}: " if candidate.where else ""
    short = text if len(text) <= 60 else text[:57] + "..."
    return InputError(
        f"{where}the id {id_!r} belongs to another candidate already, {short!r}, which has other {other}: give each "
        "candidate its own id, or update the existing one"
    )
