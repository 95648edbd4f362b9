"""Labelled texts: reads them from files, samples them per label, and splits off a held-out part."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyencoder.checks import checked_count, unencodable
from polyencoder.data.readers import OnBad, expand, raise_it, records
from polyencoder.data.texts import read_records
from polyencoder.errors import InputError

TEXT_COLUMN = "text"
LABEL_COLUMNS = ("label", "intent", "category")
"""Columns that are tried for labels, unless one is named."""


class Labelled(NamedTuple):
    """A text, its label, and its file and line."""

    text: str
    label: str
    where: str = ""


def read_labelled(
    files: str,
    *,
    text: str = TEXT_COLUMN,
    label: str | None = None,
    known: Collection[str] | None = None,
    bad: OnBad = raise_it,
) -> list[Labelled]:
    """Reads the labelled texts of files (paths and patterns, comma-separated): JSON lines, CSV, TSV or Parquet.

    White space between words counts as one space.

    Args:
        files: read in this order.
        text: the column of texts.
        label: the column of labels, texts or whole numbers; None for the first of `LABEL_COLUMNS` in the record.
        known: the allowed labels; None for any.
        bad: called with the error of a record that cannot be used.

    Raises:
        InputError: a file that cannot be read, or has no record in it; and what `bad` raises.
    """
    found = []
    for file in expand(files):
        for where, record in records(file, bad=bad):
            try:
                one = Labelled(_text(record, text, where=where), _label(record, label, where=where), where)
                if known is not None and one.label not in known:
                    raise InputError(f"{where}: the label {one.label!r:.80} is that of no training text")
            except InputError as error:
                bad(error)
            else:
                found.append(one)
    if not found:
        raise InputError(f"{files}: no labelled text in it")
    return found


def read_plain(files: str, *, text: str = TEXT_COLUMN) -> list[str]:
    """Reads texts without labels: one column of records, or each line of a text file that is not empty.

    A line of a text file, or of standard input, that begins with `{` is a record in JSON.

    Raises:
        InputError: a file that cannot be read, or has no text in it; a record without one.
    """
    found = [_text(record, text, where=where) for file in expand(files) for where, record in read_records(file)]
    if not found:
        raise InputError(f"{files}: no text in it")
    return found


def sample_per_label(labels: Sequence[str], count: int, *, seed: int = 0) -> list[int]:
    """Draws the places of `count` texts per label, in their order; all of a label that has no more."""
    count = checked_count("per_intent", count)
    return _draw(labels, lambda n: count, seed=seed)[0]


def hold_out(labels: Sequence[str], share: float, *, seed: int = 0) -> tuple[list[int], list[int]]:
    """Splits the places of texts into those to train on and those to hold out, this share of each label's.

    A label with two or more texts has at least one on each side; a single text is for training. scikit-learn's
    stratified split is an error for such labels, and for shares that are less than one text of each.
    """
    out, kept = _draw(labels, lambda n: min(max(math.floor(share * n + 0.5), 1), n - 1), seed=seed)
    return kept, out


def _draw(labels: Sequence[str], count_of: Callable[[int], int], *, seed: int) -> tuple[list[int], list[int]]:
    """The places drawn from each label, `count_of` its number of texts, and the other places."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, label in enumerate(labels):
        places[label].append(place)
    rng = np.random.default_rng(seed)
    drawn: set[int] = set()
    for label in sorted(places):
        drawn.update(rng.permutation(places[label])[: count_of(len(places[label]))].tolist())
    return sorted(drawn), [place for place in range(len(labels)) if place not in drawn]


def _text(record: dict[str, Any], column: str, *, where: str) -> str:
    value = _column(record, (column,), where=where, argument="text_column")
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {column!r} is {value!r:.60}; it must be a text that is not empty")
    if problem := unencodable(value):
        raise InputError(f"{where}: {problem}")
    return " ".join(value.split())


def _label(record: dict[str, Any], column: str | None, *, where: str) -> str:
    value = _column(record, LABEL_COLUMNS if column is None else (column,), where=where, argument="label_column")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: the label is {value!r:.60}; it must be a text that is not empty, or a whole number")
    return value.strip()


def _column(record: dict[str, Any], names: Sequence[str], *, where: str, argument: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise InputError(
        f"{where}: has no {' or '.join(map(repr, names))}; it has {', '.join(map(repr, record)) or 'nothing'}. "
        "Name the column",
        argument=argument,
    )
