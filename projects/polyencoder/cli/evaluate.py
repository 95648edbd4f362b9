"""`polyencoder evaluate`: evaluates a model on the examples of a file, or on judged queries."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from polyencoder.cli.shared.loading import check_index, check_reads_candidates, load
from polyencoder.cli.shared.output import say
from polyencoder.data.contexts import read_queries
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import add_sampled_candidates, check_samples, read_all_pairs, read_responses
from polyencoder.data.readers import BadExamples
from polyencoder.data.trec import (
    Qrels,
    Run,
    drop_identical_ids,
    iter_judgements,
    iter_results,
    read_qrels,
    read_run,
    write_run,
)
from polyencoder.errors import InputError, UsageError
from polyencoder.index.candidates import candidates_from
from polyencoder.settings.evaluate import EvaluateSettings, QrelsSettings
from polyencoder.storage.files import check_writable

if TYPE_CHECKING:
    from polyencoder.evaluation.retrieval import RetrievalReport


def evaluate(settings: EvaluateSettings) -> None:
    """Rank each example's candidates and print recall, mean reciprocal rank and loss.

    With judgements (--qrels, or --beir), search an index or rerank a run for the judged queries and print the measures
    of ir_measures.
    """
    if settings.data is not None:
        _evaluate_pairs(settings, settings.data)
    elif settings.retrieval.qrels is not None or settings.retrieval.beir is not None:
        _evaluate_retrieval(settings, settings.retrieval)
    else:
        raise UsageError("give --data, examples to rank, or --qrels or --beir, judgements of retrieval")


def _evaluate_pairs(settings: EvaluateSettings, data: str) -> None:
    from polyencoder.evaluation import evaluate as evaluated
    from polyencoder.evaluation.examples import check_examples
    from polyencoder.evaluation.names import format_line, parse_hits_at, select_main_measures
    from polyencoder.evaluation.significance import SMALL_SAMPLE, compute_standard_error
    from polyencoder.evaluation.tfidf import evaluate_tfidf

    negatives, baseline = settings.negatives, settings.baseline
    ks = parse_hits_at(settings.hits_at)
    columns, pool = settings.columns, negatives or data
    bad = BadExamples(skip=settings.skip_bad_examples)
    pairs = list(read_all_pairs(data, columns=columns, bad=bad))
    if not pairs:
        raise InputError(f"{data}: has no example to evaluate on")
    responses = partial(read_responses, pairs, negatives, columns=columns, bad=bad)
    sampler = NegativeSampler(responses(), count=settings.num_negatives, seed=settings.seed, source=pool)
    examples = []
    for example in add_sampled_candidates(pairs, sampler):
        try:
            check_examples([example])
            examples.append(example)
        except InputError as error:
            bad(error)
    check_samples(pairs, sorted(settings.explicit & {"num_negatives", "seed", *([] if baseline else ["negatives"])}))
    ranker = load(settings.model)
    check_reads_candidates(
        ranker, instead="evaluate searches of that, with --qrels, --queries and --index", argument="data"
    )
    drawn = sum(pair.candidates is None for pair in pairs)
    report = evaluated(ranker, examples, hits_at=ks, progress=None).report()
    tfidf = evaluate_tfidf(responses(), examples, hits_at=ks) if baseline else {}
    if skipped := bad.summarize():
        say(f"polyencoder: {skipped}", err=True)
    if settings.as_json:
        record = {"examples": len(examples), "drawn": drawn, **report}
        say(json.dumps(record | ({"tfidf": tfidf} if tfidf else {})))
        return
    options: dict[str, Any] = {"hits_at": ks, "alike": len({len(example.choices) for example in examples}) == 1}
    measures = select_main_measures(report, **options)
    margin = ""
    if len(examples) < SMALL_SAMPLE:
        first = next(iter(measures))
        margin = f" (standard error of {first} {compute_standard_error(measures[first], len(examples)):.2g})"
    say(f"{len(examples):,} examples: {format_line(measures, form='.4g')}{margin}")
    if tfidf:
        say(f"TF-IDF, of the last turn: {format_line(select_main_measures(tfidf, **options), form='.4g')}")
    if drawn:
        say(
            f"{drawn:,} of the examples had no candidates: {settings.num_negatives} other responses of {pool} were "
            "drawn for each"
        )


def _evaluate_retrieval(settings: EvaluateSettings, retrieval: QrelsSettings) -> None:
    from polyencoder.evaluation.retrieval import build_measure_error, check_measures, evaluate_retrieval
    from polyencoder.index.open import open_index

    check_measures(retrieval.measures)
    if retrieval.run_out is not None:
        read = (retrieval.rerank_run, retrieval.compare, retrieval.qrels, retrieval.queries, retrieval.corpus)
        check_writable(retrieval.run_out, argument="run_out", overwrite=retrieval.overwrite, read=read)
    qrels_file, queries_file, corpus = retrieval.qrels, retrieval.queries, retrieval.corpus
    if retrieval.beir is not None:
        qrels_file, queries_file = (
            os.path.join(retrieval.beir, *names) for names in (("qrels", f"{retrieval.split}.tsv"), ("queries.jsonl",))
        )
        if retrieval.rerank_run is not None and retrieval.index is None and corpus is None:
            corpus = os.path.join(retrieval.beir, "corpus.jsonl")
    if qrels_file is None or queries_file is None:
        raise UsageError("give --queries, the texts of the judged queries")
    if retrieval.index is None and (retrieval.rerank_run is None or corpus is None):
        raise UsageError("give --index, or --rerank-run with --corpus or --index")
    queries, qrels = read_queries(queries_file), read_qrels(qrels_file)
    if not qrels.keys() <= queries.keys():
        for where, query, *_ in iter_judgements(qrels_file):
            if query not in queries:
                raise InputError(f"{where}: the query {query!r} is not in {queries_file}")
    rerank, compare = (None if file is None else read_run(file) for file in (retrieval.rerank_run, retrieval.compare))
    check_index(retrieval.index)
    ranker, index, texts = load(settings.model), None, None
    with ExitStack() as stack:
        if retrieval.rerank_run is None:
            index = stack.enter_context(open_index(retrieval.index or "", ranker))
        elif rerank is not None:
            texts = _read_texts(retrieval, rerank, qrels, compare or {}, corpus=corpus or "")
        report = evaluate_retrieval(
            ranker,
            queries,
            qrels,
            index=index,
            rerank=rerank,
            texts=texts,
            measures=retrieval.measures,
            depth=retrieval.depth,
            exactness=retrieval.exactness,
            effort=retrieval.effort,
            ignore_identical_ids=retrieval.ignore_identical_ids,
            compare=compare,
            seed=settings.seed,
        )
    say(json.dumps(report.report()) if settings.as_json else "\n".join(_format_lines(report, retrieval)))
    if retrieval.run_out is not None:  # after the report, which an error here must not lose
        write_run(retrieval.run_out, report.run, overwrite=retrieval.overwrite)
        if not settings.as_json:
            say(f"{retrieval.run_out}: {sum(map(len, report.run.values())):,} results")
    if report.failed:
        raise build_measure_error(report.failed)


def _read_texts(retrieval: QrelsSettings, run: Run, qrels: Qrels, compare: Run, *, corpus: str) -> dict[str, str]:
    """The texts of the documents to rerank, of judged ones, and of the other run's best, by their ids."""
    from polyencoder.evaluation.retrieval import select_documents_to_rerank
    from polyencoder.index.open import open_index

    needed = select_documents_to_rerank(
        drop_identical_ids(run) if retrieval.ignore_identical_ids else run, qrels, depth=retrieval.depth
    )
    ids = needed.union(select_documents_to_rerank(compare, qrels, depth=1), *qrels.values())
    bad = BadExamples(skip=True)  # only needed texts must be usable
    if retrieval.index is not None:
        with open_index(retrieval.index) as index:  # whichever model made it
            texts = index.get_texts(ids)
    else:
        documents = ((candidate.id, candidate.text) for candidate in candidates_from(corpus, bad=bad))
        texts = {id_: text for id_, text in documents if id_ in ids}
    if not needed <= texts.keys():
        for where, query, document, _ in iter_results(retrieval.rerank_run or ""):
            if query in qrels and document in needed and document not in texts:
                note = f"; {bad.summarize()}" if bad.count else ""
                raise InputError(f"{where}: the document {document!r} is not in {retrieval.index or corpus}{note}")
    if summary := bad.summarize():
        say(f"polyencoder: {summary}", err=True)
    return texts


def _format_lines(report: RetrievalReport, retrieval: QrelsSettings) -> Iterator[str]:
    """The report for people."""
    yield f"{report.queries:,} judged queries"
    width = max(map(len, report.measured.means), default=0)
    for name, value in report.measured.means.items():
        low, high = report.intervals.get(name, (None, None))
        line = f"{name:<{width}}  {value:.4f}" + ("" if low is None else f"  95%: {low:.4f} to {high:.4f}")
        if report.compared is not None and report.p is not None and name in report.compared.means:
            other = report.compared.means[name]
            line += f"  {retrieval.compare}: {other:.4f}, difference {value - other:+.4f}"
            line += f", p {report.p[name]:.2g}" if name in report.p else ""
        yield line
    if report.unjudged:
        yield f"{report.unjudged:,} queries have no judgement: left out"
    if report.without_results:
        yield f"{report.without_results:,} judged queries have no result: they count as 0"
    if report.missing:
        yield f"{report.missing:,} judged documents are not in {retrieval.index or retrieval.corpus or retrieval.beir}"
