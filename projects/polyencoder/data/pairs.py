"""Reads pairs of context and response from files and Hugging Face datasets.

A record is `{"context": ["...", "..."] or "...", "response": "...", "candidates": [...]}`; the candidates may be
missing, and the columns have other names. Or the context has a column for each turn, as in PolyAI's datasets:
`context`, the last one, `context/0`, the one before it, `context/1`, ... Or it is a chat, `[{"role": "user", "content":
"..."}]`, also under the name `messages`; the assistant's last message is then the response, unless the record has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from polyencoder.checks import checked_candidate, unencodable
from polyencoder.data.epochs import Counts, estimated_counts
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler, normalized
from polyencoder.data.readers import BadExamples, DataFile, OnBad, expand, raise_it, records
from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.packages import require
from polyencoder.text.dialogue import are_messages, turns_of_messages

__all__ = [
    "HUB",
    "Columns",
    "data_files",
    "earlier_columns",
    "examples_to_rank",
    "pair_counts",
    "pair_of",
    "pairs_and_records",
    "read_all_pairs",
    "read_examples",
    "read_pairs",
]

MESSAGES = "messages"
"""The column of chat messages, `[{"role": "user", "content": "hi"}]`, in records without a context."""
HUB = "hf:"
"""Prefix of a hub dataset: `hf:NAME:SPLIT` or `hf:NAME@CONFIG:SPLIT`."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a file of pairs."""

    context: str = "context"
    response: str = "response"
    candidates: str = "candidates"


def read_pairs(
    source: str | Path | DataFile, *, columns: Columns | None = None, add_response: bool = False, bad: OnBad = raise_it
) -> Iterator[Example]:
    """Reads the pairs of a file or dataset, one at a time.

    Args:
        source: a path, an open file, or a name that begins with `HUB`.
        columns: their names.
        add_response: a response that is not among its candidates joins them, instead of being an error.
        bad: gets the error of a record that cannot be used.

    Raises:
        InputError: it cannot be read; and what `bad` raises.
        ConfigError: a package that it needs is not installed.
    """
    for pair, _ in pairs_and_records(source, columns=columns, add_response=add_response, bad=bad):
        yield pair


def pairs_and_records(
    source: str | Path | DataFile, *, columns: Columns | None = None, add_response: bool = False, bad: OnBad = raise_it
) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Like `read_pairs`, each pair with its record."""
    columns = columns or Columns()
    rows: Iterator[tuple[str, Any]]
    if isinstance(source, str) and source.startswith(HUB):
        name = source.removeprefix(HUB)
        rows = ((f"{name}, row {number}", row) for number, row in enumerate(_hub(name)[2], start=1))
    else:
        rows = records(source, bad=bad)
    for where, record in rows:
        try:
            pair = pair_of(record, columns, where=where, add_response=add_response)
        except InputError as error:
            bad(error)
        else:
            yield pair, record


def data_files(names: str) -> list[str]:
    """Expands comma-separated paths and patterns, or a hub dataset, to files."""
    return [names] if names.startswith(HUB) else expand(names)


def read_all_pairs(names: str, *, columns: Columns | None = None, bad: OnBad = raise_it) -> Iterator[Example]:
    """Yields the pairs of all these files (see `data_files`); errors as in `read_pairs`."""
    for file in data_files(names):
        yield from read_pairs(file, columns=columns, bad=bad)


def pair_counts(files: Sequence[str], *, columns: Columns | None = None) -> Counts:
    """Estimates the number of pairs in files or a hub dataset."""
    if files[0].startswith(HUB):
        _, split, dataset = _hub(files[0].removeprefix(HUB))
        known = (dataset.info.splits or {}).get(split)
        rows = known.num_examples if known else sum(1 for _ in dataset)
        return Counts(rows, rows)
    skip = BadExamples(skip=True)
    return estimated_counts(lambda file: ([one] for one in read_pairs(file, columns=columns, bad=skip)), files)


def examples_to_rank(pairs: Iterable[Example], sampler: NegativeSampler) -> list[Example]:
    """Adds fixed sampled candidates to pairs without their own, for evaluation."""
    return [sampler.complete(pair, key=f"{pair.text}\n{pair.label}") for pair in pairs]


def read_examples(
    source: str | Path,
    *,
    columns: Columns | None = None,
    with_candidates: bool = True,
    num_negatives: int | None = None,
    negatives: str | None = None,
    seed: int = 0,
) -> tuple[list[Example], int]:
    """Reads the examples of a file for calibration or checks, and the number with sampled candidates.

    A response that is not among its candidates is added.

    Args:
        source: the file.
        columns: the names of its columns.
        with_candidates: False for searches of an index: the response is the only candidate.
        num_negatives: how many candidates are drawn for a pair that has none, as `polyencoder evaluate` does; None for
            19, or as many as there are.
        negatives: files with the responses that they are drawn from; None for those of the source.
        seed: another seed, other negatives.

    Raises:
        InputError: as in `read_pairs`; for an empty file, and for one whose only response leaves nothing to draw.
        ConfigError: `num_negatives`, `negatives` or `seed`, where every example has candidates.
    """
    pairs = list(read_pairs(source, columns=columns, add_response=True))
    if not pairs:
        raise InputError(f"{source}: has no examples")
    if not with_candidates:
        return [replace(pair, candidates=[pair.label]) for pair in pairs], 0
    drawn_from = read_all_pairs(negatives, columns=columns) if negatives else pairs
    responses = [pair.label for pair in drawn_from]
    drawn = sum(pair.candidates is None for pair in pairs)
    for name, value in {"num_negatives": num_negatives, "negatives": negatives, "seed": seed or None}.items():
        if value is not None and not drawn:
            raise ConfigError(f"{name}: every example has candidates of its own; leave it out", argument=name)
    if num_negatives is None:
        num_negatives = min(19, len(set(map(normalized, responses))) - 1)
        if drawn and num_negatives < 1:
            raise InputError(
                f"{source}: has no {(columns or Columns()).candidates!r}, and no second response to draw any from",
                argument="candidates",
            )
    sampler = NegativeSampler(responses, count=max(1, num_negatives), seed=seed, source=negatives or str(source))
    return examples_to_rank(pairs, sampler), drawn


def pair_of(record: dict[str, Any], columns: Columns, *, where: str, add_response: bool = False) -> Example:
    """Reads the pair of a record; InputError names `where` an invalid one is from."""
    record = _of_messages(record, columns, where=where)
    names = {"context": columns.context, "response": columns.response}
    if columns.candidates != Columns.candidates:  # a named column must exist
        names["candidates"] = columns.candidates
    for part, name in names.items():
        if name not in record:
            raise InputError(
                f"{where}: has no {name!r}; it has {', '.join(map(repr, record)) or 'nothing'}. Name the column with "
                f"the {part}",
                argument=f"columns.{part}",
            )
    try:
        turns, response = _turns(record, columns.context), _text(record[columns.response])
        candidates = _options(record.get(columns.candidates))
        if problem := next(filter(None, map(unencodable, (*turns, response))), None):
            raise TypeError(problem)
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: {error}") from None
    if candidates and response not in candidates:
        if add_response:
            return Example(turns, response, [response, *candidates], where)
        raise InputError(f"{where}: its response is not among its {len(candidates)} candidates")
    return Example(turns, response, candidates or None, where)


def _of_messages(record: dict[str, Any], columns: Columns, *, where: str) -> dict[str, Any]:
    """Converts a record of `messages` to the columns of a pair; the default response is the assistant's last one."""
    messages = record.get(MESSAGES) if columns.context == Columns.context else None
    messages = record.get(columns.context, messages)
    if not are_messages(messages):
        return record
    found = {**record, columns.context: messages}
    if columns.response not in record:
        last = messages[-1]
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise InputError(
                f"{where}: has no {columns.response!r}, and the last of its messages, which would be the response, is "
                "not the assistant's"
            )
        (response,) = turns_of_messages([last], name=f"{where}: the response")
        found |= {columns.context: messages[:-1], columns.response: response}
    return found


def earlier_columns(record: Mapping[str, Any], column: str = "context") -> list[str]:
    """The columns of earlier turns, oldest first; `context/0` is the latest of them, as in PolyAI's datasets."""
    found = takewhile(record.__contains__, (f"{column}/{number}" for number in count()))
    return list(found)[::-1]


def _turns(record: dict[str, Any], column: str) -> list[str]:
    value, earlier = record[column], [record[name] for name in earlier_columns(record, column)]
    if earlier and isinstance(value, str | None):
        if others := [turn for turn in earlier if not isinstance(turn, str | None)]:
            raise TypeError(f"a turn before the last one of the context is {type(others[0]).__name__}, not a text")
        turns = [" ".join((turn or "").split()) for turn in (*earlier, value)]  # each in one line, as the tasks have it
    elif isinstance(value, str):
        turns = [value]
    elif are_messages(value):
        turns = turns_of_messages(value, name="the context")
    elif isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        turns = value
    else:
        raise TypeError(f"the context is neither a text nor a list of texts, but {type(value).__name__}")
    turns = [turn.strip() for turn in turns if turn.strip()]
    if not turns:
        raise TypeError("the context is empty")
    return turns


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"the response is {'empty' if isinstance(value, str) else type(value).__name__}, not a text")
    return value.strip()


def _options(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    if isinstance(value, str):  # one cell of a CSV file
        value = value.split("|")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("the candidates are not a list of texts (in CSV: joined by |)")
    return [checked_candidate(f"candidate {place}", text).strip() for place, text in enumerate(value)]


def _hub(name: str) -> tuple[str, str, Any]:
    """(name, split, dataset) of `NAME:SPLIT` or `NAME@CONFIG:SPLIT`."""
    path, _, split = name.rpartition(":")
    if not path:
        raise ConfigError(f"dataset {name}: give NAME:SPLIT, such as squad:train", argument="dataset")
    path, _, config = path.partition("@")
    load_dataset = require("datasets", extra="data").load_dataset
    try:
        return path, split, load_dataset(path, config or None, split=split, streaming=True)
    except Exception as error:  # whatever the network, the hub or the files do
        raise InputError(f"dataset {name}: cannot be read ({first_line(error)})") from error
