"""Texts and their labels: from files, so many of each label, and a part of them that is held out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyencoder.checks import checked_count, unencodable
from polyencoder.data.readers import OnBad, expand, raise_it, records
from polyencoder.data.texts import read_records
from polyencoder.errors import InputError

__all__ = ["LABEL_COLUMNS", "TEXT_COLUMN", "Labelled", "few_of_each", "held_out", "read_labelled", "read_plain"]

TEXT_COLUMN = "text"
LABEL_COLUMNS = ("label", "intent", "category")
"""Where records have their label, unless another column is named."""


class Labelled(NamedTuple):
    """A text, what it was labelled with, and where it stands."""

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
    """The labelled texts of files (paths and patterns, a comma between them): JSON lines, CSV, TSV or Parquet.

    White space between words counts as one space.

    Args:
        files: those that are read, in this order.
        text: the column with texts.
        label: that with labels, texts or whole numbers; None: the first of `LABEL_COLUMNS` that there is.
        known: the labels that there may be; None: any.
        bad: gets the error of a record that cannot be used.

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
    """The texts of files, which need no labels: of records one column, of text files each line that is not empty.

    A line of a text file, or of standard input, that begins with `{` is a record in JSON.

    Raises:
        InputError: a file that cannot be read, or has no text in it; a record without one.
    """
    found = [_text(record, text, where=where) for file in expand(files) for where, record in read_records(file)]
    if not found:
        raise InputError(f"{files}: no text in it")
    return found


def few_of_each(labels: Sequence[str], count: int, *, seed: int = 0) -> list[int]:
    """The places of `count` texts of each label, drawn by `seed`, in their order; all of a label that has no more."""
    count = checked_count("per_intent", count)
    rng = np.random.default_rng(seed)
    return sorted(int(place) for places in _by_label(labels) for place in rng.permutation(places)[:count])


def held_out(labels: Sequence[str], share: float, *, seed: int = 0) -> tuple[list[int], list[int]]:
    """The places of the texts that are learnt from, and of those that are held out: this share of each label's.

    Of a label with two texts or more at least one is held out and one learnt from; a single one is learnt from.
    scikit-learn's stratified split is an error for such labels, and for shares that are less than one text of each.
    """
    rng = np.random.default_rng(seed)
    kept: list[int] = []
    out: list[int] = []
    for places in _by_label(labels):
        drawn = [int(place) for place in rng.permutation(places)]
        count = min(max(math.floor(share * len(drawn) + 0.5), 1), len(drawn) - 1)
        out += drawn[:count]
        kept += drawn[count:]
    return sorted(kept), sorted(out)


def _by_label(labels: Sequence[str]) -> list[list[int]]:
    """The places of each label's texts; labels in alphabetical order."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, label in enumerate(labels):
        places[label].append(place)
    return [places[label] for label in sorted(places)]


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
