"""Reads candidates from users' files: a text per line, or records with an id and metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from polyencoder.data.layouts import collect_candidates
from polyencoder.data.readers import BadExamples, OnBad, detect_format, expand, iter_records, parse_delimiter, raise_it
from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate, convert_id, format_metadata

TABLES = ("csv", "tsv", "parquet")
MAX_CHARACTERS = 20_000
"""A longer candidate suggests a file without line ends or of another format; a model reads about 400 characters."""
_CHECKED = 100_000  # candidates of a file: half a second


@dataclass(frozen=True)
class CandidateColumns:
    """The columns of files of candidates. All others are metadata."""

    text: str = "text"
    """The column with the texts of candidates."""
    id: str = "id"
    """The column with their ids, if any."""
    title: str | None = None
    """A column with titles, which begin the texts."""
    delimiter: str | None = None
    """The separator of the columns of CSV and TSV: a character, tab, semicolon or pipe (default: what the first rows
    show)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter", parse_delimiter(self.delimiter))


def candidates_from(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    columns: CandidateColumns = CandidateColumns(),
    split: bool = False,
    bad: OnBad = raise_it,
) -> Iterator[Candidate]:
    """Yields the candidates of files, in order.

    JSON lines, CSV, TSV and Parquet have a field `text` and optionally `id`, or those that `columns` names; all other
    fields are metadata, and so are the fields of a `metadata` object, as for `Ranker.index`. In a table, empty cells
    are no fields, and `metadata` may be a JSON object. A record with `_id` in place of `id` is from BEIR's
    `corpus.jsonl`: its `title` begins the text. Each response, candidate or negative of a record for training
    (`data.layouts`) is a candidate. Any other file has a text per line; empty lines are skipped. The names may be globs
    and comma-separated lists; `-` is standard input; `.gz`, `.bz2`, `.xz` and `.zst` files are decompressed.

    Raises:
        InputError: a file that cannot be read, or, unless `bad` handles it, a candidate without text, with more than
            `MAX_CHARACTERS` (BEIR's, and those to `split`, may have more), an id that is neither text nor a whole
            number, or metadata that JSON cannot hold, such as nan. It names the line.
    """
    for path in expand(paths):
        format = detect_format(path)
        for where, record in iter_records(path, delimiter=columns.delimiter, bad=bad):
            if format == "txt" and not record["text"].strip():
                continue
            try:
                if columns.text == "text" not in record and (texts := collect_candidates(record, where=where)):
                    yield from [to_candidate({"text": text}, where=where, split=split) for text in texts]
                    continue
                _check_columns(record, columns, where=where)
                if format in TABLES:
                    record = clean_row(record, text=columns.text)
                if isinstance(record.get("vector"), list):
                    raise InputError(f"{where}: has a vector: give the file as vectors, or leave that column out")
                candidate = to_candidate(record, where=where, columns=columns, split=split)
            except InputError as error:
                bad(error)
                continue
            yield candidate


def check_beginnings(
    paths: Iterable[str], *, skip: bool, columns: CandidateColumns = CandidateColumns(), split: bool = False
) -> None:
    """Reads the first candidates of files but pipes, before a model is loaded; errors as in `candidates_from`."""
    for path in filter(os.path.isfile, paths):
        bad = BadExamples(skip=skip, argument="skip_bad_candidates")
        for _ in islice(candidates_from([path], columns=columns, split=split, bad=bad), _CHECKED):
            pass


def _check_columns(record: dict[str, Any], columns: CandidateColumns, *, where: str) -> None:
    """Raises InputError for a record without the column of its text, or without another named column."""
    for part in ("text", "id", "title"):
        name = getattr(columns, part)
        if name not in record and (part == "text" or name != getattr(CandidateColumns, part)):
            raise InputError(
                f"{where}: has no {name!r}; it has {', '.join(map(repr, record)) or 'nothing'}. Name the column with "
                f"the {part} of candidates",
                argument=part,
            )


def to_candidate(
    record: dict[str, Any], *, where: str, columns: CandidateColumns = CandidateColumns(), split: bool = False
) -> Candidate:
    """Converts a record of a file to a candidate: fields that `columns` does not name are metadata. Errors as above."""
    text, is_beir = record.pop(columns.text, None), "_id" in record and columns.id not in record
    id_ = convert_id(record.pop("_id" if is_beir else columns.id, None))
    named = columns.title or ("title" if is_beir else None)
    if named and isinstance(title := record.get(named), str) and isinstance(text, str):
        del record[named]
        text = f"{title} {text}".strip()  # as BEIR's models read it
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{where}: no text in the field `{columns.text}` ({text!r:.40}); a candidate is {{'text': ..., 'id': ...}}"
        )
    if len(text) > MAX_CHARACTERS and not is_beir and not split:
        raise InputError(
            f"{where}: a text of {len(text):,} characters, more than {MAX_CHARACTERS:,}; is this a file of candidates, "
            "one to a line? An index may split long texts (split)"
        )
    if id_ is not None and (not isinstance(id_, str) or not id_):
        raise InputError(f"{where}: the id {id_!r:.40} is neither text nor a whole number")
    metadata = record.get("metadata")
    if metadata is None or isinstance(metadata, dict):
        fields = record.pop("metadata", None) or {}
        if repeated := next((key for key in fields if key in record and record[key] != fields[key]), None):
            raise InputError(f"{where}: has {repeated!r:.60} twice, in `metadata` and beside it: leave one of them out")
        record |= fields
    try:
        format_metadata(record)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Candidate(id_, text, record or None, where)


def clean_row(record: dict[str, Any], *, text: str = "text") -> dict[str, Any]:
    """A row of a table without its empty cells, which a candidate lacks; its metadata become a dict."""
    record = {name: cell for name, cell in record.items() if name == text or (cell is not None and cell != "")}
    if (metadata := record.pop("metadata", None)) is None:
        return record
    if isinstance(metadata, dict):  # a struct of Parquet has all fields in each row
        metadata = {name: cell for name, cell in metadata.items() if cell is not None}
    if isinstance(metadata, str):
        with suppress(ValueError, RecursionError):  # another text is metadata, too, such as 2024 or NaN
            metadata = parsed if isinstance(parsed := json.loads(metadata), dict) else metadata
    elif isinstance(metadata, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in metadata):
        metadata = dict(metadata)
    return record | {"metadata": metadata}
