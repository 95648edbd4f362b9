"""Reads pairs of context and response from files and Hugging Face datasets (`layouts`: what their records hold)."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyencoder.data.epochs import Counts, estimate_counts
from polyencoder.data.example import Example
from polyencoder.data.judged import is_judged, read_judged_pairs
from polyencoder.data.layouts import Columns, parse_examples
from polyencoder.data.negatives import NegativeSampler, count_negatives
from polyencoder.data.readers import (
    BadExamples,
    DataFile,
    OnBad,
    expand,
    iter_records,
    log_once,
    log_system_messages,
    raise_it,
)
from polyencoder.errors import ConfigError, InputError, get_first_line
from polyencoder.packages import require

HUB = "hf:"
"""Prefix of a hub dataset: `hf:NAME:SPLIT` or `hf:NAME@CONFIG:SPLIT`."""
HELD_OUT, HELD_OUT_SHARE = 1_000, 10  # without validation data: at most 1,000 pairs and a tenth


def read_pairs(
    source: str | Path | DataFile, *, columns: Columns | None = None, add_response: bool = False, bad: OnBad = raise_it
) -> Iterator[Example]:
    """Reads the pairs of a file or dataset, one at a time.

    Args:
        source: a path, an open file, or a name that begins with `HUB`; qrels as in `read_judged_pairs`.
        columns: their names.
        add_response: a response that is not among its candidates joins them, instead of being an error.
        bad: gets the error of a record that cannot be used.

    Raises:
        InputError: it cannot be read; and what `bad` raises.
        ConfigError: a package that it needs is not installed.
    """
    for pair, _ in read_pairs_and_records(source, columns=columns, add_response=add_response, bad=bad):
        yield pair


def read_pairs_and_records(
    source: str | Path | DataFile, *, columns: Columns | None = None, add_response: bool = False, bad: OnBad = raise_it
) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Like `read_pairs`, each pair with its record."""
    columns = columns or Columns()
    rows: Iterator[tuple[str, Any]]
    if is_judged(source):
        yield from read_judged_pairs(source, bad=bad)
        return
    if isinstance(source, str) and source.startswith(HUB):
        name = source.removeprefix(HUB)
        rows = ((f"{name}, row {number}", row) for number, row in enumerate(_load_hub_dataset(name)[2], start=1))
    else:
        rows = iter_records(source, delimiter=columns.delimiter, bad=bad)
    yield from _read_rows(str(source), rows, columns, add_response=add_response, bad=bad)


def read_pair_rows(
    rows: Iterable[Example | Mapping[str, Any]],
    *,
    name: str,
    columns: Columns | None = None,
    add_response: bool = False,
    bad: OnBad = raise_it,
) -> Iterator[Example]:
    """The pairs of records in memory, such as a `datasets.Dataset`; an `Example` is a pair already.

    `name` is the data's, for errors; `add_response` as in `read_pairs`. Raises InputError for a row that is
    neither, and what `bad` raises.
    """
    numbered = ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))
    for pair, _ in _read_rows(name, numbered, columns or Columns(), add_response=add_response, bad=bad):
        yield pair


def _read_rows(
    name: str, rows: Iterable[tuple[str, Any]], columns: Columns, *, add_response: bool, bad: OnBad
) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Yields the examples of rows, each with its place, and logs, once for a file, what is left out of chats."""
    counts = Counter[str]()
    for where, row in rows:
        if isinstance(row, Example):
            yield row if row.where else replace(row, where=where), {}
            continue
        try:
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: is neither a record with named columns nor an Example: {row!r:.60}")
            pairs = parse_examples(dict(row), columns, where=where, add_response=add_response, counts=counts)
        except InputError as error:
            bad(error)
        else:
            yield from pairs
    if counts["chats"]:
        all_answer = counts["answers"] == counts["replies"]
        log_once(
            logging.INFO if all_answer else logging.WARNING,
            f"{name}: {counts['answers']:,} of the assistant's {counts['replies']:,} messages in {counts['chats']:,} "
            "chats are examples, those after a message of the user",
        )
    if counts["system"] and columns.system == "leave-out":
        log_system_messages(name, counts["system"])


def expand_files(names: str) -> list[str]:
    """Expands comma-separated paths and patterns, or a hub dataset, to files."""
    return [names] if names.startswith(HUB) else expand(names)


def read_all_pairs(names: str, *, columns: Columns | None = None, bad: OnBad = raise_it) -> Iterator[Example]:
    """Yields the pairs of all these files (see `expand_files`); errors as in `read_pairs`."""
    for file in expand_files(names):
        yield from read_pairs(file, columns=columns, bad=bad)


def count_held_out(pairs: int) -> int:
    """How many of the last training pairs a run evaluates on, and leaves out, if it has no validation data."""
    return min(HELD_OUT, max(1, pairs // HELD_OUT_SHARE)) if pairs > 1 else 0


def estimate_pair_counts(files: Sequence[str], *, columns: Columns | None = None) -> Counts:
    """Estimates the number of pairs in files or a hub dataset."""
    if files[0].startswith(HUB):
        _, split, dataset = _load_hub_dataset(files[0].removeprefix(HUB))
        split_info = (dataset.info.splits or {}).get(split)
        rows = split_info.num_examples if split_info else sum(1 for _ in dataset)
        return Counts(rows, rows)
    skip = BadExamples(skip=True)
    return estimate_counts(lambda file: ([pair] for pair in read_pairs(file, columns=columns, bad=skip)), files)


def add_sampled_candidates(pairs: Iterable[Example], sampler: NegativeSampler) -> list[Example]:
    """Adds fixed sampled candidates to pairs without their own, for evaluation."""
    return [sampler.complete(pair, key=f"{pair.text}\n{pair.label}") for pair in pairs]


def read_responses(
    pairs: Iterable[Example],
    negatives: str | None = None,
    *,
    columns: Columns | None = None,
    bad: OnBad = raise_it,
) -> Iterator[str]:
    """Yields the right responses of the pairs, or of the files `negatives`: those that candidates are sampled from."""
    drawn_from = read_all_pairs(negatives, columns=columns, bad=bad) if negatives else pairs
    return (text for pair in drawn_from for text in pair.right)


def check_samples(pairs: Iterable[Example], explicit: Iterable[str]) -> None:
    """Raises ConfigError for a setting of sampled candidates that was given, if every pair has candidates."""
    if all(pair.candidates is not None for pair in pairs):
        for name in explicit:
            raise ConfigError(f"{name}: every example has candidates of its own; leave it out", argument=name)


def read_examples(
    source: str | os.PathLike[str] | Iterable[Example | Mapping[str, Any]],
    *,
    columns: Columns | None = None,
    with_candidates: bool = True,
    num_negatives: int | None = None,
    negatives: str | None = None,
    seed: int = 0,
    bad: OnBad = raise_it,
) -> tuple[list[Example], int]:
    """Reads the examples of a file, or records, for calibration or checks, and the number with sampled candidates.

    A response that is not among its candidates is added.

    Args:
        with_candidates: False for searches of an index: the right responses are the only candidates.
        num_negatives: how many candidates are drawn for a pair that has none; None for 19, or as many as there are.
        negatives: files with the responses that they are drawn from; None for the source's.

    Raises:
        InputError: as in `read_pairs`; for an empty file, and for one whose only response leaves nothing to draw.
        ConfigError: `num_negatives` or `negatives`, where every example has candidates.
    """
    if isinstance(source, (str, os.PathLike)):
        source = os.fspath(source)
        pairs = list(read_pairs(source, columns=columns, add_response=True, bad=bad))
    else:
        rows, source = source, "examples"
        pairs = list(read_pair_rows(rows, name=source, columns=columns, add_response=True, bad=bad))
    if not pairs:
        raise InputError(f"{source}: has no examples")
    if not with_candidates:
        return [replace(pair, candidates=pair.right) for pair in pairs], 0
    settings = {"num_negatives": num_negatives, "negatives": negatives}
    check_samples(pairs, (name for name, value in settings.items() if value is not None))
    responses = list(read_responses(pairs, negatives, columns=columns, bad=bad))
    drawn = sum(pair.candidates is None for pair in pairs)
    if num_negatives is None:
        num_negatives = count_negatives(pairs, responses)
        if drawn and num_negatives < 1:
            raise InputError(
                f"{source}: has no {(columns or Columns()).candidates!r}, and no second response to draw any from",
                argument="candidates",
            )
    sampler = NegativeSampler(responses, count=max(1, num_negatives), seed=seed, source=negatives or source)
    return add_sampled_candidates(pairs, sampler), drawn


def _load_hub_dataset(name: str) -> tuple[str, str, Any]:
    """(name, split, dataset) of `NAME:SPLIT` or `NAME@CONFIG:SPLIT`."""
    path, _, split = name.rpartition(":")
    if not path:
        raise ConfigError(f"dataset {name}: give NAME:SPLIT, such as squad:train", argument="dataset")
    path, _, config = path.partition("@")
    load_dataset = require("datasets", extra="data").load_dataset
    try:
        return path, split, load_dataset(path, config or None, split=split, streaming=True)
    except Exception as error:  # whatever the network, the hub or the files do
        raise InputError(f"dataset {name}: cannot be read ({get_first_line(error)})") from error
