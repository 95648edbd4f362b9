"""`polyencoder search`: the best candidates of an index for the contexts of a flag, a file or standard input."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn, cast

import typer

from polyencoder.checks import half_characters, unencodable
from polyencoder.cli.contexts import Question, in_batches, read_questions
from polyencoder.cli.flags import check_flags
from polyencoder.cli.options import (
    BackendName,
    Device,
    IndexPath,
    KeepTurns,
    MinProbability,
    Model,
    ModelDtype,
    left_out,
    load,
)
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.index.base import Hit
from polyencoder.index.open import open_index
from polyencoder.index.options import Exactness, Filter, ScanDtype, SearchOptions
from polyencoder.index.searcher import Searcher

__all__ = ["search"]


def search(
    ctx: typer.Context,
    model: Model,
    index: IndexPath,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", help="A turn of the context; repeat it, oldest turn first."),
    ] = None,
    contexts: Annotated[
        str,
        typer.Option(
            help="FILE, GLOB or - for standard input: one context per line; a line that begins with { is JSON with "
            "`context`, a text or a list of turns. Also .jsonl, CSV and Parquet."
        ),
    ] = "-",
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", help="Number of results per context.")] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE that the metadata must match; repeat a key to allow several values."),
    ] = None,
    exactness: Annotated[
        str | None,
        typer.Option(help="At least exact, certified or approximate (default: the fastest that the index has)."),
    ] = None,
    effort: Annotated[
        int | None,
        typer.Option(help="Effort of FAISS: ef_search of hnsw, nprobe of ivf (default: as the index was built)."),
    ] = None,
    list_length: Annotated[
        int | None,
        typer.Option(help="Candidates proposed by each code, or group of codes (default: 4 k, at least 256)."),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Precision of a scan: float32, or bfloat16, which is faster if the processor supports it and the "
            "vectors are stored so. Then the choice is approximate; scores stay exact."
        ),
    ] = "float32",
    rerank: Annotated[str | None, typer.Option(help="A cross-encoder to rerank the first results.")] = None,
    rerank_k: Annotated[int, typer.Option(help="How many results the cross-encoder reranks.")] = 50,
    min_probability: MinProbability = None,
    keep_turns: KeepTurns = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per context and line.")] = False,
    timing: Annotated[bool, typer.Option("--timing", help="Print on standard error how long each step took.")] = False,
    batch_size: Annotated[int, typer.Option(help="Contexts per batch.", min=1)] = 32,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Print the best candidates for each context, with their scores and how they were found."""
    check_flags(ctx, needs={"rerank": ["rerank_k"]}, excludes={"context": ["contexts"]})
    questions = iter([Question(context)]) if context else read_questions(expand(contexts))
    if not context and contexts == "-" and sys.stdin.isatty():
        batch_size = 1  # who types wants an answer to each line
    ranker = load(model, device=device, backend=backend, dtype=model_dtype)
    options = SearchOptions(
        top_k=top_k,
        filter=_filter(filter or []),
        exactness=cast("Exactness | None", exactness),  # which is checked there, as is dtype
        effort=effort,
        list_length=list_length,
        dtype=cast("ScanDtype", dtype),
    )
    searcher = Searcher(
        ranker,
        open_index(index, ranker),
        options,
        reranker=load(rerank, device=device, dtype=model_dtype) if rerank else None,
        rerank_k=rerank_k,
        min_probability=min_probability,
        keep_turns=keep_turns,
    )
    for batch in in_batches(questions, batch_size):
        found = searcher([one.turns for one in batch])
        for question, hits, improbable in zip(batch, found, searcher.improbable, strict=True):
            if as_json:
                typer.echo(_as_json(question, hits, improbable))
            else:
                typer.echo(_as_text(question, hits, "" if hits else _why_none(searcher, improbable)))
    if searcher.contexts == 0:
        raise InputError(f"{contexts}: no context in it" if contexts != "-" else "no context on standard input")
    if said := left_out(searcher):
        typer.echo(f"polyencoder: {said}", err=True)
    if timing:
        typer.echo(_timing(searcher), err=True)


def _filter(pairs: list[str]) -> Filter | None:
    """`["lang=en", "n=3", "n=4"]` -> `{"lang": ["en"], "n": ["3", 3, "4", 4]}`: a table's numbers may be text."""
    wanted: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if problem := unencodable(pair):
            raise InputError(f"--filter: {problem}")
        if not key or not equals:
            raise InputError(f"--filter {pair}: must be KEY=VALUE, such as --filter lang=en")
        options = wanted.setdefault(key, [])
        options.append(value)
        try:
            meant = json.loads(value, parse_constant=_no_number)
            if problem := half_characters(meant):
                raise InputError(f"--filter {pair}: {problem}")
        except InputError:
            raise
        except ValueError:
            continue
        if not isinstance(meant, (list, dict)):
            options.append(meant)
    return wanted or None


def _no_number(name: str) -> NoReturn:
    """Of NaN and Infinity, which Python reads as numbers and JSON does not know."""
    raise ValueError(name)


def _why_none(searcher: Searcher, improbable: float | None) -> str:
    """Why a context has no hit."""
    if improbable is not None:
        return f"no candidate is probable enough; the best would be right with {improbable:.1%}"
    if searcher.options.filter and searcher.among == 0:
        return "no candidate passes the filter"
    return "every candidate is a turn of the context (--keep-turns keeps these)"


def _as_json(question: Question, hits: list[Hit], improbable: float | None) -> str:
    found = [{key: value for key, value in hit._asdict().items() if value is not None} for hit in hits]
    record = {"context": question.turns, "hits": found} | ({} if question.id is None else {"id": question.id})
    record |= {} if improbable is None else {"best_left_out": improbable}
    return json.dumps(record, ensure_ascii=False)


def _as_text(question: Question, hits: list[Hit], nothing: str) -> str:
    rows = [f"> {_one_line(' / '.join(question.turns))}"]
    for place, hit in enumerate(hits, start=1):
        again = "" if hit.rerank_score is None else f"  {hit.rerank_score:9.4f} (of {hit.score:.4f})"
        score = again or f"  {hit.score:9.4f}"
        likely = "" if hit.probability is None else f"  {hit.probability:4.0%}"
        rows.append(f"{place:>4}{score}{likely}  {hit.found}  {hit.id}  {_one_line(hit.text)}")
    return "\n".join(rows if hits else [*rows, f"  {nothing}"])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _timing(searcher: Searcher) -> str:
    each = {step: 1000 * seconds / searcher.contexts for step, seconds in searcher.seconds.items()}
    steps = ", ".join(f"{step} {milliseconds:.2f}" for step, milliseconds in each.items())
    return f"{searcher.contexts:,} contexts, {sum(each.values()):.2f} ms each: {steps}"
