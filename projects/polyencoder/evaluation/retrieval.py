"""Retrieval evaluation with relevance judgements (qrels) and ir_measures: intervals, comparison of two runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from subprocess import SubprocessError
from typing import Any, NamedTuple

import numpy as np

from polyencoder.calibration import CalibratedRanker
from polyencoder.data.loader import iter_batches
from polyencoder.data.trec import Qrels, Run, drop_identical_ids, sort_best_first
from polyencoder.encoding.protocol import Dialogue
from polyencoder.errors import ConfigError, InputError, join_lines
from polyencoder.evaluation.runs import rerank_run, search_run
from polyencoder.evaluation.significance import compute_bootstrap_intervals, run_randomisation_test
from polyencoder.index.base import Index
from polyencoder.index.filters import Exactness
from polyencoder.packages import require
from polyencoder.settings.evaluate import DEPTH, MEASURES

# what its providers raise
_CANNOT = (ArithmeticError, AssertionError, KeyError, OSError, RuntimeError, SubprocessError, ValueError)
_IDS_AT_ONCE = 1024
_log = logging.getLogger(__name__)


class RunMeasures(NamedTuple):
    """The measures of a run."""

    means: dict[str, float]
    """Each measure of all judged queries; a query without results counts as 0."""
    by_query: dict[str, dict[str, float]]
    """Each measure of each judged query."""
    failed: dict[str, str]
    """The reasons of measures that ir_measures could not compute, which `means` and `by_query` lack."""


@dataclass(frozen=True, kw_only=True)
class RetrievalReport:
    """The results of a retrieval evaluation."""

    run: Run
    """The run that was measured."""
    measured: RunMeasures
    intervals: dict[str, tuple[float, float]]
    """The 95% confidence interval of each measure that is a mean of all judged queries' values."""
    queries: int
    """The number of judged queries, which the means are over."""
    unjudged: int
    """Queries without a judgement: left out."""
    without_results: int
    """Judged queries without a result: every measure is 0."""
    missing: int | None
    """Judged documents that the index or the texts do not have; None if neither was searched."""
    compared: RunMeasures | None = None
    """The measures of the other run."""
    p: dict[str, float] | None = None
    """The p value of each measure's difference from the other run."""

    @property
    def failed(self) -> dict[str, str]:
        """The measures that ir_measures could not compute of a run, and why."""
        return {**({} if self.compared is None else self.compared.failed), **self.measured.failed}

    def report(self) -> dict[str, Any]:
        """The report as `polyencoder evaluate --json` prints it."""
        counts = {name: getattr(self, name) for name in ("queries", "unjudged", "without_results", "missing")}
        present = {name: value for name, value in counts.items() if value is not None}
        intervals = {name: list(ends) for name, ends in self.intervals.items()}
        other = {} if self.compared is None else {"compared": {**self.compared.means, "p": self.p}}
        failed = {"failed": self.failed} if self.failed else {}
        return {**present, **self.measured.means, "intervals": intervals, **other, **failed}


def evaluate_retrieval(
    ranker: CalibratedRanker,
    queries: Mapping[str, Dialogue],
    qrels: Qrels,
    *,
    index: Index | None = None,
    rerank: Run | None = None,
    texts: Mapping[str, str] | None = None,
    measures: Sequence[str] = MEASURES,
    depth: int = DEPTH,
    exactness: Exactness | None = None,
    effort: int | None = None,
    ignore_identical_ids: bool = False,
    compare: Run | None = None,
    seed: int = 0,
) -> RetrievalReport:
    """Searches an index, or reranks a run, for the judged queries, and measures the results.

    As in trec_eval and BEIR, queries without a judgement are left out, and judged queries without results count as 0.
    A measure that cannot be computed of the results does not lose the run: `RetrievalReport.failed` has its reason.

    Examples:
        >>> qrels = read_qrels("fiqa/qrels/test.tsv")
        >>> evaluate_retrieval(ranker, read_queries("fiqa/queries.jsonl"), qrels, index=index).report()
        {'queries': 648, 'unjudged': ..., 'nDCG@10': ..., ...}

    Args:
        queries: a text, or the turns or messages of a dialogue, by their ids.
        qrels: the judgements, such as those that `trec.read_qrels` reads.
        index: the index to search; with `rerank`, the source of the texts of the run's documents.
        rerank: a run to re-rank, instead of a search.
        texts: without an index: of the corpus, or at least of the documents to rerank, by their ids.
        measures: names that ir_measures knows.
        depth: results of a query that are found, or reranked.
        exactness, effort: of the search, see `SearchOptions`.
        ignore_identical_ids: leave out documents that have their query's id, as BEIR's code does.
        compare: another run of the same queries.
        seed: of the intervals and the test.

    Raises:
        ConfigError: a measure that ir_measures does not know or cannot compute; ir_measures is not installed; neither
            an index nor a run.
        InputError: a judged query that is none of the queries; no judged document is in the index or among the texts; a
            run of another corpus.
    """
    check_measures(measures)
    _check_qrels(qrels)
    # before the search, as some measures' programs cannot read all ids; Accuracy needs a result that is not judged
    ideal = {query: {**labels, "unjudged": -1.0} for query, labels in qrels.items()}
    if failed := _measure(ideal, qrels, _parse_measures(measures)).failed:
        raise build_measure_error(failed)
    for name, other in (("rerank_run", rerank), ("compare", compare)):
        _check_queries(other, qrels, argument=name)
    if (unknown := next((query for query in qrels if query not in queries), None)) is not None:
        raise InputError(f"the judged query {unknown!r} is not among the {len(queries):,} queries", argument="queries")
    judged = {query: queries[query] for query in qrels}
    documents = sorted(_iter_documents(qrels))
    if ignore_identical_ids:
        rerank, compare = (None if run is None else drop_identical_ids(run) for run in (rerank, compare))
    if index is not None:
        if rerank is not None and index.split is not None:
            raise ConfigError("a run is reranked by the texts of its documents, and this index has their passages")
        needed = {*documents, *select_documents_to_rerank(rerank or {}, judged, depth=depth)}
        ids = {f"{document}#1" if index.split else document: document for document in needed}  # of the first passages
        texts = {ids[id_]: text for id_, text in index.get_texts(ids).items()}
    if rerank is not None and texts is None:
        raise ConfigError("a run is reranked by the texts of its documents: give an index, or texts")
    missing = sum(document not in (texts or {}) for document in documents)
    if missing == len(documents):
        where = "among the texts" if index is None else f"in the index {index.address}"
        raise InputError(f"none of the {missing:,} judged documents is {where}, such as {documents[0]!r}: other ids?")
    if compare is not None and not any(_has_any(compare, known_ids) for known_ids in (texts or {}, {*documents})):
        others = () if index is None else map(index.get_texts, iter_batches(_iter_documents(compare), _IDS_AT_ONCE))
        if not any(others):
            raise InputError(
                "the run has no document of the index or the texts: it is of another corpus", argument="compare"
            )
    if rerank is not None:
        run = rerank_run(ranker, rerank, judged, texts or {}, depth=depth)
    elif index is not None:
        if depth < len(index) and (
            deeper := [str(measure) for measure in _parse_measures(measures) if _get_cutoff(measure) > depth]
        ):
            _log.warning("%s: only the first %d results are found; give a larger depth", ", ".join(deeper), depth)
        run = search_run(
            ranker,
            index,
            judged,
            depth=depth,
            exactness=exactness,
            effort=effort,
            ignore_identical_ids=ignore_identical_ids,
        )
    else:
        raise ConfigError("give an index to search, or a run to rerank", argument="index")
    unjudged = len(queries) - len(judged)
    return _build_report(run, qrels, measures, compare=compare, seed=seed, unjudged=unjudged, missing=missing)


def select_documents_to_rerank(run: Run, queries: Container[str], *, depth: int = DEPTH) -> set[str]:
    """The documents of the run whose texts reranking needs: the first `depth` results of these queries."""
    return {id_ for query, results in run.items() if query in queries for id_, _ in sort_best_first(results)[:depth]}


def evaluate_run(
    run: Run,
    qrels: Qrels,
    *,
    measures: Sequence[str] = MEASURES,
    compare: Run | None = None,
    seed: int = 0,
) -> RetrievalReport:
    """Measures a run of any system; see `evaluate_retrieval`. Warns of a run without a judged document.

    Raises:
        ConfigError: a measure that ir_measures does not know or cannot compute; or ir_measures is not installed.
        InputError: there is no judgement, or `compare` has none of the judged queries.
    """
    check_measures(measures)
    _check_qrels(qrels)
    _check_queries(compare, qrels, argument="compare")
    for name, checked in (("run", run), ("compare", compare)):
        if checked is not None and not _has_any(checked, {*_iter_documents(qrels)}):
            _log.warning("%s: no result is a judged document; is it of another corpus?", name)
    report = _build_report(run, qrels, measures, compare=compare, seed=seed)
    if report.failed:
        raise build_measure_error(report.failed)
    return report


def _build_report(
    run: Run,
    qrels: Qrels,
    measures: Sequence[str],
    *,
    compare: Run | None,
    seed: int,
    unjudged: int = 0,
    missing: int | None = None,
) -> RetrievalReport:
    parsed = _parse_measures(measures)
    measured = _measure(run, qrels, parsed)
    other = None if compare is None else _measure(compare, qrels, parsed)
    mean = require("ir_measures", extra="evaluate").MeanAgg  # over queries; others are sums, such as NumRet
    means = [
        name
        for name, kind in ((str(measure), measure.aggregator()) for measure in parsed)
        if isinstance(kind, mean) and _has_all(measured, name) and (other is None or _has_all(other, name))
    ]
    values = _build_table(measured, means)
    ends = compute_bootstrap_intervals(values, seed=seed).tolist()
    p = None
    if other is not None:
        p = dict(
            zip(means, run_randomisation_test(values, _build_table(other, means), seed=seed).tolist(), strict=True)
        )
    return RetrievalReport(
        run=run,
        measured=measured,
        intervals={name: (low, high) for name, (low, high) in zip(means, ends, strict=True)},
        queries=len(qrels),
        unjudged=unjudged,
        without_results=sum(not run.get(query) for query in qrels),
        missing=missing,
        compared=other,
        p=p,
    )


def check_measures(measures: Sequence[str]) -> None:
    """Raises ConfigError unless ir_measures is installed, and knows these measures and can compute them."""
    ir_measures = require("ir_measures", extra="evaluate")
    if isinstance(measures, str) or not measures:
        raise ConfigError(f"measures is {measures!r}; give a list of names, such as nDCG@10", argument="measures")
    for measure in _parse_measures(measures):
        try:
            measure.validate_params()
            if _get_cutoff(measure) < 1:
                raise ValueError("its cutoff must be at least 1")
            ir_measures.evaluator([measure], {"1": {"a": 1, "b": 0}}).calc({"1": {"a": 1.0, "b": 0.5}})
        except _CANNOT as error:
            raise build_measure_error({str(measure): join_lines(error)}) from None


def _get_cutoff(measure: Any) -> int:
    return int(measure.params.get("cutoff", 1))


def _check_qrels(qrels: Qrels) -> None:
    """Raises InputError if nothing is judged, or nothing is right."""
    if not any(qrels.values()):
        raise InputError("there is no judgement: nothing can be measured", argument="qrels")
    if not any(label > 0 for labels in qrels.values() for label in labels.values()):
        raise InputError("all labels are 0: no document is right, so every measure would be 0", argument="qrels")


def build_measure_error(failed: Mapping[str, str]) -> ConfigError:
    """The error of measures that ir_measures cannot compute, from their reasons."""
    reasons = "; ".join(f"{name!r} here: {reason}" for name, reason in failed.items())
    return ConfigError(f"ir_measures cannot compute {reasons}", argument="measures")


def _parse_measures(measures: Sequence[str]) -> list[Any]:
    """Parses the names of measures, without duplicates."""
    ir_measures = require("ir_measures", extra="evaluate")
    parsed: dict[Any, None] = {}
    for name in measures:
        try:
            parsed[ir_measures.parse_measure(name)] = None
        except (NameError, ValueError, TypeError, SyntaxError) as error:
            names = ", ".join(sorted({kind.NAME for kind in ir_measures.measures.registry.values() if kind.NAME}))
            raise ConfigError(
                f"ir_measures has no measure {name!r} ({join_lines(error)}); its names are {names}, with a cutoff as "
                "in nDCG@10; see https://ir-measur.es/en/latest/measures.html",
                argument="measures",
            ) from None
    return list(parsed)


def _has_all(measured: RunMeasures, name: str) -> bool:
    """Whether each query has a value; Accuracy has none where no result is irrelevant."""
    return all(math.isfinite(values.get(name, math.nan)) for values in measured.by_query.values())


def _measure(run: Run, qrels: Qrels, measures: Sequence[Any]) -> RunMeasures:
    """Computes parsed measures: together or, if one of them fails, each alone."""
    floats = {query: {id_: float(hits[id_]) for id_ in hits} for query in qrels if (hits := run.get(query))}
    judged = {query: dict(labels) for query, labels in qrels.items()}
    measured = RunMeasures({}, {query: {} for query in qrels}, {})
    try:
        results = require("ir_measures", extra="evaluate").evaluator(measures, judged).calc(floats)
    except _CANNOT as error:
        if len(measures) == 1:
            measured.failed[str(measures[0])] = join_lines(error)
        for alone in (_measure(run, qrels, [measure]) for measure in measures if len(measures) > 1):
            measured.means.update(alone.means)
            measured.failed.update(alone.failed)
            for query, values in alone.by_query.items():
                measured.by_query[query].update(values)
        return measured
    for query, measure, value in results.per_query:
        measured.by_query[query][str(measure)] = float(value)
    measured.means.update({str(measure): float(results.aggregated[measure]) for measure in measures})
    return measured


def _build_table(measured: RunMeasures, names: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([[values[name] for name in names] for values in measured.by_query.values()])


def _iter_documents(table: Run | Qrels) -> Iterator[str]:
    return iter(dict.fromkeys(document for documents in table.values() for document in documents))


def _has_any(run: Run, documents: Container[str]) -> bool:
    return any(document in documents for document in _iter_documents(run))


def _check_queries(run: Run | None, qrels: Qrels, *, argument: str) -> None:
    if run is not None and not run.keys() & qrels.keys():
        raise InputError(f"the run has none of the {len(qrels):,} judged queries: other ids?", argument=argument)
