"""Reads candidates from users' files: a text per line, or records with an id and metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from polyencoder.data.readers import BadExamples, OnBad, expand, format_of, raise_it, records
from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate, as_id, canonical

TABLES = ("csv", "tsv", "parquet")
MAX_CHARACTERS = 20_000
"""A longer candidate suggests a file without line ends or of another format; a model reads about 400 characters."""
_CHECKED = 100_000  # candidates of a file: half a second


def candidates_from(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    bad: OnBad = raise_it,
) -> Iterator[Candidate]:
    """Yields the candidates of files, in order.

    JSON lines, CSV, TSV and Parquet have a field `text` and optionally `id`; all other fields are metadata, and so are
    the fields of a `metadata` object, as for `Ranker.index`. In a table, empty cells are no fields, and `metadata` may
    be a JSON object. A record with `_id` in place of `id` is one of BEIR's `corpus.jsonl`: its `title` is the beginning
    of the text. Any other file has a text per line; empty lines are skipped. The names may be globs and comma-separated
    lists; `-` is standard input; `.gz`, `.bz2`, `.xz` and `.zst` files are decompressed.

    Raises:
        InputError: a file that cannot be read, or, unless `bad` handles it, a candidate without text, with more than
            `MAX_CHARACTERS` (BEIR's may have more), an id that is neither text nor a whole number, or metadata that
            JSON cannot hold, such as nan. It names the line.
    """
    for path in expand(paths):
        format = format_of(path)
        for where, record in records(path, bad=bad):
            if format == "txt" and not record["text"].strip():
                continue
            if format in TABLES:
                record = row_of_table(record)
            try:
                if isinstance(record.get("vector"), list):
                    raise InputError(f"{where}: has a vector: give the file as vectors, or leave that column out")
                candidate = candidate_of(record, where=where)
            except InputError as error:
                bad(error)
                continue
            yield candidate


def check_beginnings(paths: Iterable[str], *, skip: bool) -> None:
    """Reads the first candidates of files, all but pipes, before a model is loaded for them.

    Raises:
        InputError: as `candidates_from`; with `skip` only for a file that cannot be read.
    """
    for path in filter(os.path.isfile, paths):
        for _ in islice(candidates_from([path], bad=BadExamples(skip=skip, argument="skip_bad_candidates")), _CHECKED):
            pass


def candidate_of(record: dict[str, Any], *, where: str) -> Candidate:
    """Converts a record of a file to a candidate: fields other than `text` and `id` are metadata. Errors as above."""
    if "text" not in record:
        raise InputError(
            f"{where}: has no 'text'; it has {', '.join(map(repr, record)) or 'nothing'}. Rename the column with the "
            "candidates to text"
        )
    text, is_beir = record.pop("text", None), "_id" in record and "id" not in record
    id_ = as_id(record.pop("_id" if is_beir else "id", None))
    if is_beir and isinstance(title := record.get("title"), str) and isinstance(text, str):
        del record["title"]
        text = f"{title} {text}".strip()  # as BEIR's models read it
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{where}: no text in the field `text` ({text!r:.40}); a candidate is {{'text': ..., 'id': ...}}"
        )
    if len(text) > MAX_CHARACTERS and not is_beir:
        raise InputError(
            f"{where}: a text of {len(text):,} characters, more than {MAX_CHARACTERS:,}; is this a file of candidates, "
            "one to a line?"
        )
    if id_ is not None and (not isinstance(id_, str) or not id_):
        raise InputError(f"{where}: the id {id_!r:.40} is neither text nor a whole number")
    metadata = record.get("metadata")
    if metadata is None or isinstance(metadata, dict):
        fields = record.pop("metadata", None) or {}
        if twice := next((key for key in fields if key in record and record[key] != fields[key]), None):
            raise InputError(f"{where}: has {twice!r:.60} twice, in `metadata` and beside it: leave one of them out")
        record |= fields
    try:
        canonical(record)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Candidate(id_, text, record or None, where)


def row_of_table(record: dict[str, Any]) -> dict[str, Any]:
    """A row of a table without its empty cells: there is no other way to say that a candidate lacks a field.

    Its metadata, a JSON object or a map, are a dict.
    """
    record = {name: cell for name, cell in record.items() if name == "text" or (cell is not None and cell != "")}
    if (metadata := record.pop("metadata", None)) is None:
        return record
    if isinstance(metadata, dict):  # a struct of Parquet has all fields in each row
        metadata = {name: cell for name, cell in metadata.items() if cell is not None}
    if isinstance(metadata, str):
        with suppress(ValueError, RecursionError):  # another text is metadata, too, such as 2024 or NaN
            metadata = parsed if isinstance(parsed := json.loads(metadata), dict) else metadata
    elif isinstance(metadata, list) and all(isinstance(one, tuple) and len(one) == 2 for one in metadata):
        metadata = dict(metadata)
    return record | {"metadata": metadata}
