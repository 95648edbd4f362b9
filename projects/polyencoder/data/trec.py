"""Reads and writes files of retrieval tests: qrels and runs in TREC's formats, and BEIR's qrels."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from polyencoder.checks import parse_number
from polyencoder.data.readers import DataFile, iter_lines, log_once
from polyencoder.errors import InputError
from polyencoder.storage.files import atomic_write, reporting_write_errors

Qrels = Mapping[str, Mapping[str, int]]
"""The label of each judged document, by the ids of the query and the document; 0 for one that is not relevant."""

Run = Mapping[str, Mapping[str, float]]
"""The score of each result, by the ids of the query and the document. The scores give the order."""

_HEADER = ["query-id", "corpus-id", "score"]  # of BEIR's files

T = TypeVar("T")
Path = str | os.PathLike[str]


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Reads the qrels of a file (see `iter_judgements`). InputError if empty, or if a query has a document twice."""
    return _group_by_query(path, iter_judgements(path), "judges the document")


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads the results of a run (see `iter_results`). InputError if empty, or if a query has a document twice."""
    return _group_by_query(path, iter_results(path), "has the document")


def iter_judgements(path: Path | DataFile) -> Iterator[tuple[str, str, str, int]]:
    """Yields each judgement of a file: its place, the ids of query and document, and the label.

    Either TREC's four columns between spaces (`query 0 document label`), or BEIR's three between tabs (`query-id`,
    `corpus-id`, `score`), with or without a header. Labels are whole numbers; a negative one, such as TREC-COVID's -1,
    counts as 0, not relevant, and the log has their number.

    Raises:
        InputError: a file that cannot be read, or a line that is no judgement. It names the line.
    """
    beir: bool | None = None
    judged = negative = 0
    for number, line in iter_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if beir is None:
            beir = line.count("\t") == 2
            if beir and line.lower().split() == _HEADER:
                continue
        fields = line.strip("\r\n").split("\t") if beir else line.split()
        if len(fields) != (3 if beir else 4):
            raise InputError(
                f"{where}: has {len(fields)} columns, but a judgement has TREC's four, `query 0 document label`, or "
                "BEIR's three between tabs, `query-id`, `corpus-id` and `score`"
            )
        query, document, label = (fields[0], fields[-2], fields[-1].strip())
        value = parse_number(label)
        if value is None or not value.is_integer():
            raise InputError(f"{where}: the label is {label!r:.40}; it must be a whole number")
        judged, negative = judged + 1, negative + (value < 0)
        yield where, query, document, max(0, int(value))
    if negative:
        message = f"{path}: {negative:,} of {judged:,} labels are negative, and count as not relevant"
        log_once(logging.WARNING, message)


def iter_results(path: Path) -> Iterator[tuple[str, str, str, float]]:
    """Yields each result of a run: its place, the ids of query and document, and the score.

    TREC's six columns, `query Q0 document rank score name`. As in trec_eval, the scores say the order, not the ranks.

    Raises:
        InputError: a file that cannot be read, or a line that is no result. It names the line.
    """
    for number, line in iter_lines(path):
        if not (fields := line.split()):
            continue
        where = f"{path}, line {number}"
        if len(fields) != 6:
            raise InputError(
                f"{where}: has {len(fields)} columns, but a run has TREC's six, `query Q0 document rank score name`"
            )
        score = parse_number(fields[4])
        if score is None or not math.isfinite(score):
            raise InputError(f"{where}: the score is {fields[4]!r:.40}; it must be a finite number")
        yield where, fields[0], fields[2], score


def sort_best_first(results: Mapping[str, float]) -> list[tuple[str, float]]:
    """A query's results in the order of their scores."""
    return sorted(results.items(), key=lambda item: -item[1])


def drop_identical_ids(run: Run) -> dict[str, dict[str, float]]:
    """The run without documents that have their query's id."""
    return {query: {id_: score for id_, score in results.items() if id_ != query} for query, results in run.items()}


def write_run(path: Path, run: Run, *, overwrite: bool = True) -> None:
    """Writes a run in TREC's format, the best result of each query first.

    Raises:
        InputError: an id has a space, which the format cannot hold, or a score is not finite.
        PolyencoderError: the file cannot be written, or exists and `overwrite` is False.
    """
    for id_ in (id_ for query, results in run.items() for id_ in (query, *results)):
        if id_.split() != [id_]:
            raise InputError(f"the id {id_!r:.60} cannot be written: TREC's format has no spaces in ids")
    for query, results in run.items():
        if not all(map(math.isfinite, results.values())):
            raise InputError(f"the run has a score for the query {query!r} that is not finite")
    with (
        reporting_write_errors(path),
        atomic_write(path, overwrite=overwrite) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        for query, results in run.items():
            file.writelines(
                f"{query} Q0 {document} {rank} {float(score)!r} polyencoder\n"
                for rank, (document, score) in enumerate(sort_best_first(results), 1)
            )


def _group_by_query(path: Path, rows: Iterable[tuple[str, str, str, T]], verb: str) -> dict[str, dict[str, T]]:
    table: dict[str, dict[str, T]] = {}
    for where, query, document, value in rows:
        values = table.setdefault(query, {})
        if document in values:
            raise InputError(f"{where}: {verb} {document!r} for the query {query!r} a second time")
        values[document] = value
    if not table:
        raise InputError(f"{os.fspath(path)}: is empty")
    return table
