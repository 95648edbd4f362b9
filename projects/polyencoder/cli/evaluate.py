"""`polyencoder evaluate`: how well a model ranks the examples of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from polyencoder.cli.flags import given_flags
from polyencoder.cli.options import (
    BackendName,
    CandidatesColumn,
    ContextColumn,
    Device,
    Model,
    ModelDtype,
    ResponseColumn,
    load,
)
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import Columns, examples_to_rank, read_all_pairs
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation import evaluate as evaluated
from polyencoder.evaluation.contexts import reads_earlier_turns, with_contexts
from polyencoder.evaluation.names import main_measures, parse_hits_at
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.ranker.protocol import TextRanker

__all__ = ["evaluate"]


def evaluate(
    ctx: typer.Context,
    model: Model,
    data: Annotated[str, typer.Option("--data", "-d", help="FILE or GLOB, comma-separated, or hf:NAME:SPLIT.")],
    context: ContextColumn = "context",
    response: ResponseColumn = "response",
    candidates: CandidatesColumn = "candidates",
    num_negatives: Annotated[int, typer.Option(help="Candidates to sample for an example that has none.")] = 19,
    negatives: Annotated[
        str | None,
        typer.Option(
            help="FILE to sample them from (default: the responses of --data). With the training data and seed of "
            "polyencoder train, they are the ones of its own evaluations."
        ),
    ] = None,
    hits_at: Annotated[str, typer.Option(help="Values of k for R{N}@k, separated by commas.")] = "1,5,10",
    seed: Annotated[int, typer.Option(help="Seed of sampled candidates.")] = 0,
    extra_contexts: Annotated[
        int | None, typer.Option(help="Multi-context convert models: how many turns before the last one are read.")
    ] = None,
    context_vector: Annotated[
        str | None,
        typer.Option(
            help="Multi-context convert models: rank with the combined (default), immediate or extra vector. With "
            "extra, examples without earlier turns are left out and counted."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="tfidf: also measure the keyword baseline, on the last turns, with word weights from the responses of "
            "--negatives."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as one JSON object.")] = False,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Rank each example's candidates and print recall, mean reciprocal rank and loss."""
    ks = parse_hits_at(hits_at)
    if baseline not in (None, "tfidf"):
        raise ConfigError(f"baseline is {baseline!r}; it must be tfidf", argument="baseline")
    columns, pool = Columns(context, response, candidates), negatives or data
    pairs = list(read_all_pairs(data, columns=columns))
    if not pairs:
        raise InputError(f"{data}: has no example to evaluate on")

    def responses() -> Iterator[str]:
        drawn_from = read_all_pairs(negatives, columns=columns) if negatives else pairs
        return (pair.label for pair in drawn_from)

    sampler = NegativeSampler(responses(), count=num_negatives, seed=seed, source=pool)
    rows = list(zip(pairs, examples_to_rank(pairs, sampler), strict=True))
    if all(pair.candidates is not None for pair in pairs):
        for name in sorted(given_flags(ctx) & {"num_negatives", *([] if baseline else ["negatives"])}):
            raise ConfigError(f"{name}: every example has candidates of its own; leave it out", argument=name)
    ranker: TextRanker = load(model, device=device, backend=backend, dtype=model_dtype)
    if extra_contexts is not None or context_vector is not None:
        ranker = with_contexts(ranker, extra_contexts=extra_contexts, vector=context_vector)
    if context_vector == "extra":
        rows = [row for row in rows if reads_earlier_turns(ranker, row[1].turns)]
        if not rows:
            raise InputError(f"{data}: no example has a turn before its last one, which is all that extra reads")
    examples = [example for _, example in rows]
    drawn, left_out = sum(pair.candidates is None for pair, _ in rows), len(pairs) - len(rows)
    report = evaluated(ranker, examples, hits_at=ks).report()
    tfidf = evaluate_tfidf(responses(), examples, hits_at=ks) if baseline else {}
    if as_json:
        of_it = {"examples": len(examples), "drawn": drawn, **report}
        more = {"without_earlier_turns": left_out, "tfidf": tfidf}
        typer.echo(json.dumps(of_it | {name: value for name, value in more.items() if value}))
        return
    typer.echo(f"{len(examples):,} examples: {_measures(report)}")
    if tfidf:
        typer.echo(f"TF-IDF, of the last turn: {_measures(tfidf)}")
    if left_out:
        typer.echo(f"{left_out:,} others have no turn before the last one, which is all that extra reads: left out")
    if drawn:
        typer.echo(
            f"{drawn:,} of the examples had no candidates: {num_negatives} other responses of {pool} were drawn for "
            "each"
        )


def _measures(report: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in main_measures(report).items())
