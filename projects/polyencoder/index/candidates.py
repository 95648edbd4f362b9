"""Candidates from the files that users have: a text a line, or records with an id and metadata."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from polyencoder.data.readers import OnBad, expand, format_of, raise_it, records
from polyencoder.errors import InputError
from polyencoder.index.base import Candidate
from polyencoder.index.entries import canonical

MAX_CHARACTERS = 20_000
"""A longer candidate is no reply, but a file without line ends or of another format: a model reads some 400 of it."""


def candidates_from(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    bad: OnBad = raise_it,
) -> Iterator[Candidate]:
    """The candidates of files, one at a time, in order.

    JSON lines, CSV, TSV and Parquet have a field `text`, and if they like `id`; all other fields are metadata, and so
    are the fields of a `metadata` object, as `Ranker.index` takes it. Any other file is a text a line, of which empty
    ones are left out. The names may be globs and comma-separated lists; `-` is standard input; `.gz`, `.bz2`, `.xz` and
    `.zst` files are decompressed.

    Raises:
        InputError: a file that cannot be read, or, unless `bad` does something else with it, a candidate without text,
            of more than `MAX_CHARACTERS`, with an id that is neither text nor a whole number, or with what JSON has
            not, such as nan, in its metadata. It names the line.
    """
    for path in expand(paths):
        is_lines = format_of(path) == "txt"
        for where, record in records(path, bad=bad):
            if is_lines and not record["text"].strip():
                continue
            try:
                candidate = candidate_of(record, where=where)
            except InputError as error:
                bad(error)
                continue
            yield candidate


def candidate_of(record: dict[str, Any], *, where: str) -> Candidate:
    """A candidate of a record of a file: fields other than `text` and `id` are metadata. Errors as above."""
    if "text" not in record:
        raise InputError(
            f"{where}: has no 'text'; it has {', '.join(map(repr, record)) or 'nothing'}. Rename the column with the "
            "candidates to text"
        )
    text, id_ = record.pop("text", None), record.pop("id", None)
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{where}: no text in the field `text` ({text!r:.40}); a candidate is {{'text': ..., 'id': ...}}"
        )
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{where}: a text of {len(text):,} characters, more than {MAX_CHARACTERS:,}; is this a file of candidates, "
            "one to a line?"
        )
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    if id_ is not None and (not isinstance(id_, str) or not id_):
        raise InputError(f"{where}: the id {id_!r:.40} is neither text nor a whole number")
    if isinstance(record.get("metadata"), dict):
        record |= record.pop("metadata")
    try:
        canonical(record)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Candidate(id_, text, record or None, where)
