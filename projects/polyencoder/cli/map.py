"""`polyencoder map`: the baseline MAP, a linear map of responses' vectors, and a ranker that has it."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Annotated

import typer

from polyencoder.cli.options import BackboneName, ContextColumn, Device, ModelOrNone, ResponseColumn, load_encoder
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import Columns, examples_to_rank, read_all_pairs
from polyencoder.data.readers import BadExamples
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation import evaluate
from polyencoder.evaluation.names import main_measures
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.export.folder import check_no_model, export_folder
from polyencoder.index.meta import separable
from polyencoder.ranker.ranker import Ranker
from polyencoder.storage.files import check_writable_folder
from polyencoder.training.candidate_map import MapSettings, fit_map, mapped, pair_vectors

__all__ = ["map_candidates"]

_DEFAULTS = MapSettings()
_RATES, _STRENGTHS = (
    ",".join(f"{number:g}" for number in numbers) for numbers in (_DEFAULTS.learning_rates, _DEFAULTS.regularizers)
)
_HELD_OUT = 0.2  # of the training pairs, as much as in the published code


def map_candidates(
    train: Annotated[str, typer.Option(help="Pairs: FILE or GLOB, comma-separated, or hf:NAME:SPLIT.")],
    model: ModelOrNone = None,
    backbone: BackboneName = None,
    valid: Annotated[
        str | None,
        typer.Option(help="Other pairs, to evaluate with and without the map, and TF-IDF; never tuned on."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The model folder to write the ranker with its map to.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in --out.")] = False,
    context: ContextColumn = "context",
    response: ResponseColumn = "response",
    skip_bad_examples: Annotated[
        bool, typer.Option("--skip-bad-examples", help="Skip and count records that cannot be used.")
    ] = False,
    learning_rates: Annotated[str, typer.Option(help="Learning rates to try, comma-separated.")] = _RATES,
    regularizers: Annotated[str, typer.Option(help="Strengths of L2 regularization to try.")] = _STRENGTHS,
    batch_size: Annotated[int, typer.Option(help="Pairs per batch.")] = _DEFAULTS.batch_size,
    patience: Annotated[int, typer.Option(help="Epochs without improvement that end a try.")] = _DEFAULTS.patience,
    max_epochs: Annotated[int, typer.Option(help="Maximum epochs of a try.")] = _DEFAULTS.max_epochs,
    label_smoothing: Annotated[
        float, typer.Option(help="Label smoothing: probability mass shared by the wrong responses.")
    ] = _DEFAULTS.label_smoothing,
    num_negatives: Annotated[int, typer.Option(help="Candidates to sample for each pair of --valid.")] = 19,
    seed: Annotated[int, typer.Option(help="Seed of the held-out pairs, the batches and the sampled candidates.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
    device: Device = None,
) -> None:
    """Train the baseline MAP: a linear map from responses' vectors to contexts', on a frozen encoder."""
    settings = MapSettings(
        _numbers("learning_rates", learning_rates),
        _numbers("regularizers", regularizers),
        batch_size,
        patience,
        max_epochs,
        label_smoothing,
        seed,
    )
    if out is not None:
        check_writable_folder(out, argument="out")
        check_no_model(out, overwrite=overwrite)
    columns, bad = Columns(context, response), BadExamples(skip=skip_bad_examples)
    pairs = list(read_all_pairs(train, columns=columns, bad=bad))
    others = list(read_all_pairs(valid, columns=columns, bad=bad)) if valid else []
    if valid and not others:
        raise InputError(f"{valid}: has no pair to evaluate on")
    if summary := bad.summary():
        typer.echo(summary, err=True)
    learnt, held_out = _split(pairs, seed=seed)
    ranker = load_encoder(model, backbone, device=device)
    vectors = pair_vectors(ranker, [*learnt, *held_out], progress=progress)
    first, rest = vectors.split(len(learnt))
    found = fit_map(first, rest, settings, on_progress=(lambda line: typer.echo(line, err=True)) if progress else None)
    after = Ranker(mapped(separable(ranker), found.matrix), ranker.text, device=ranker.device)
    report = found._asdict()
    del report["matrix"]
    if others:
        sampler = NegativeSampler((pair.label for pair in pairs), count=num_negatives, seed=seed, source=train)
        examples = examples_to_rank(others, sampler)
        report["valid"] = {
            "TF-IDF": evaluate_tfidf((pair.label for pair in pairs), examples),
            "as it is": evaluate(ranker, examples).report(),
            "mapped": evaluate(after, examples).report(),
        }
    if out is not None:
        export_folder(after, out)
    if as_json:
        typer.echo(json.dumps(report))
        return
    typer.echo(
        f"held out: R@1 {found.before:.3f} as it is, {found.recall:.3f} mapped (learning rate {found.learning_rate:g}, "
        f"L2 {found.regularizer:g}, {found.epochs} epochs)"
    )
    for who, metrics in report.get("valid", {}).items():
        typer.echo(f"{who:9}" + "  ".join(f"{name} {value:.3f}" for name, value in main_measures(metrics).items()))
    if out is not None:
        typer.echo(f"{out}: written. Next: polyencoder evaluate --model {shlex.quote(str(out))} --data FILE")


def _split(pairs: list[Example], *, seed: int) -> tuple[list[Example], list[Example]]:
    """What is learnt from, and what is held out: the last pairs, which are of other dialogues.

    Those come in random order, so that a pair is not ranked among its own dialogue's.
    """
    count = round(_HELD_OUT * len(pairs))
    first, last = pairs[: len(pairs) - count], pairs[len(pairs) - count :]
    return first, random.Random(seed).sample(last, count)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name} is {text!r}; it must be numbers with commas between them", argument=name) from None
