"""`polyencoder evaluate`: how well a model ranks the examples of a file."""

from __future__ import annotations

import json
from typing import Annotated

import typer

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
from polyencoder.errors import InputError
from polyencoder.evaluation import evaluate as evaluated
from polyencoder.evaluation.contexts import with_contexts
from polyencoder.evaluation.names import main_measures, parse_hits_at
from polyencoder.protocol import TextRanker

__all__ = ["evaluate"]


def evaluate(
    model: Model,
    data: Annotated[str, typer.Option("--data", "-d", help="FILE or GLOB, several with commas, or hf:NAME:SPLIT.")],
    context: ContextColumn = "context",
    response: ResponseColumn = "response",
    candidates: CandidatesColumn = "candidates",
    num_negatives: Annotated[int, typer.Option(help="Candidates that are drawn for an example that has none.")] = 19,
    negatives: Annotated[
        str | None,
        typer.Option(
            help="FILE whose responses they are drawn from, by default --data itself. With the training data and seed "
            "of polyencoder train they are those of its own evaluations."
        ),
    ] = None,
    hits_at: Annotated[str, typer.Option(help="The k of R{N}@k, separated by commas.")] = "1,5,10",
    seed: Annotated[int, typer.Option(help="Of the candidates that are drawn.")] = 0,
    extra_contexts: Annotated[
        int | None, typer.Option(help="Of a multi-context convert model: how many turns before the last one it reads.")
    ] = None,
    context_vector: Annotated[
        str | None, typer.Option(help="Of one: which vector it ranks with, combined (the default), immediate or extra.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All metrics, as one JSON object.")] = False,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Rank each example's candidates and print recall, mean reciprocal rank and loss."""
    ks = parse_hits_at(hits_at)
    columns, pool = Columns(context, response, candidates), negatives or data
    pairs = list(read_all_pairs(data, columns=columns))
    if not pairs:
        raise InputError(f"{data}: has no example to evaluate on")
    drawn_from = read_all_pairs(negatives, columns=columns) if negatives else pairs
    sampler = NegativeSampler((pair.response for pair in drawn_from), count=num_negatives, seed=seed, source=pool)
    examples = examples_to_rank(pairs, sampler)
    drawn = sum(pair.candidates is None for pair in pairs)
    ranker: TextRanker = load(model, device=device, backend=backend, dtype=model_dtype)
    if extra_contexts is not None or context_vector is not None:
        ranker = with_contexts(ranker, extra_contexts=extra_contexts, vector=context_vector)
    report = evaluated(ranker, examples, hits_at=ks).report()
    if as_json:
        typer.echo(json.dumps({"examples": len(examples), "drawn": drawn, **report}))
        return
    measures = "  ".join(f"{name} {value:.4g}" for name, value in main_measures(report).items())
    typer.echo(f"{len(examples):,} examples: {measures}")
    if drawn:
        typer.echo(
            f"{drawn:,} of them had no candidates: {num_negatives} other responses of {pool} were drawn for each"
        )
