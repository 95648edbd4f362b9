"""`polyencoder intents`: intent classifiers on the vectors of a frozen encoder."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from polyencoder.cli.flags import check_flags, given_flags
from polyencoder.cli.options import BackboneName, BackendName, Device, ModelDtype, ModelOrNone, load_encoder
from polyencoder.data.readers import BadExamples
from polyencoder.errors import ConfigError
from polyencoder.hub.resolve import there
from polyencoder.intents.classifier import HEAD, EncoderSource, IntentClassifier, Prediction
from polyencoder.intents.examples import read_labelled, read_plain
from polyencoder.intents.head import HeadConfig
from polyencoder.intents.metrics import Metrics
from polyencoder.intents.mlp import FitSettings, HeadOptimizer
from polyencoder.intents.training import IntentReport, train_intents
from polyencoder.ranker.encoding import VectorKind
from polyencoder.ranker.ranker import Ranker
from polyencoder.storage.files import check_writable_folder

__all__ = ["intents"]

_HEAD, _FIT = HeadConfig(), FitSettings()
_OF_USE = ("min_probability", "top_k")
_SHARED = {"model", "backbone", "predict", "head", "text_column", "progress", "device", "model_dtype", "backend"}
_OF_MLP = {
    *("grid", "hidden_layers", "hidden_size", "dropout"),
    *("optimizer", "learning_rate", "batch_size", "patience", "max_epochs"),
}
_DATA, _LEARNING, _MLP, _USE = "Data", "Training", "The paper's head (--head mlp)", "Use of a head"
_SHOWN = 5  # confusions


def intents(
    ctx: typer.Context,
    model: ModelOrNone = None,
    backbone: BackboneName = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="FILE or GLOB, comma-separated: texts and labels as JSON lines, CSV, TSV or Parquet.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test data in the same form.", rich_help_panel=_DATA)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write the trained head to.", rich_help_panel=_DATA)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a head in --out.", rich_help_panel=_DATA)
    ] = False,
    text_column: Annotated[str, typer.Option(help="The column with texts.", rich_help_panel=_DATA)] = "text",
    label_column: Annotated[
        str | None,
        typer.Option(help="The column with labels (default: label, intent or category).", rich_help_panel=_DATA),
    ] = None,
    skip_bad_examples: Annotated[
        bool,
        typer.Option("--skip-bad-examples", help="Skip and count records that cannot be used.", rich_help_panel=_DATA),
    ] = False,
    per_intent: Annotated[
        int | None, typer.Option(help="Train on a sample of this many texts per label.", rich_help_panel=_DATA)
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of each label's training texts to hold out.", rich_help_panel=_DATA)
    ] = _FIT.held_out,
    seeds: Annotated[
        int,
        typer.Option(help="Number of runs, with seeds from --seed upwards.", min=1, rich_help_panel=_LEARNING),
    ] = 1,
    seed: Annotated[
        int, typer.Option(help="Seed of sampling, of held-out texts and of the head.", rich_help_panel=_LEARNING)
    ] = 0,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Search the paper's Table 8, 50 heads, instead of the next five settings.",
            rich_help_panel=_MLP,
        ),
    ] = False,
    hidden_layers: Annotated[
        int, typer.Option(help="Hidden layers of the head; 0 for a linear one.", rich_help_panel=_MLP)
    ] = _HEAD.hidden_layers,
    hidden_size: Annotated[int, typer.Option(help="Units of each of them.", rich_help_panel=_MLP)] = _HEAD.hidden_size,
    dropout: Annotated[
        float, typer.Option(help="Dropout of the hidden layers' inputs.", rich_help_panel=_MLP)
    ] = _HEAD.dropout,
    optimizer: Annotated[
        str, typer.Option(help="sgd, or adam with a learning rate that decays to 0.", rich_help_panel=_MLP)
    ] = _FIT.optimizer,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Default: 0.75 for sgd, 4e-4 for adam.", rich_help_panel=_MLP),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts per batch.", rich_help_panel=_MLP)] = _FIT.batch_size,
    patience: Annotated[
        int, typer.Option(help="Stop after this many epochs without improvement.", rich_help_panel=_MLP)
    ] = _FIT.patience,
    max_epochs: Annotated[int, typer.Option(help="Maximum epochs.", rich_help_panel=_MLP)] = _FIT.max_epochs,
    kind: Annotated[
        str, typer.Option(help="Which vectors: pooled, context or candidate, as in encode.", rich_help_panel=_LEARNING)
    ] = "pooled",
    baseline: Annotated[
        str | None, typer.Option(help="tfidf: also measure a linear classifier on TF-IDF.", rich_help_panel=_LEARNING)
    ] = None,
    predict: Annotated[
        str | None, typer.Option(help="FILE or GLOB with texts: print one JSON line per text.", rich_help_panel=_USE)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="With --train: logistic (regression; the default) or mlp, the paper's head. With --predict: the "
            "folder of a trained head.",
            rich_help_panel=_USE,
        ),
    ] = None,
    min_probability: Annotated[
        float,
        typer.Option(help="Print null (none of these) for less probable intents; 0 to 1.", rich_help_panel=_USE),
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option(help="How many intents to show with their probabilities.", min=1, rich_help_panel=_USE)
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Train and evaluate an intent classifier on a frozen encoder's vectors; or use one, with --predict."""

    def load(source: EncoderSource) -> Ranker:
        return load_encoder(source.model, source.backbone, device=device, backend=backend, dtype=model_dtype)

    given = EncoderSource(model, backbone)
    if (predict is None) == (train is None):
        raise ConfigError("give either --train, to train a head, or --predict with --head, to use one")
    flags = given_flags(ctx)
    check_flags(ctx, needs={"predict": _OF_USE, "train": sorted(flags - _SHARED - {*_OF_USE, "train"})})
    if predict is not None:
        if head is None:
            raise ConfigError("--predict needs --head, the folder of a trained head")
        texts = read_plain(predict, text=text_column)
        classifier = IntentClassifier.from_pretrained(head, lambda source: load(_chosen(given, source, head)))
        _show(texts, classifier.predict(texts, min_probability=min_probability, top_k=top_k))
        return
    if head not in (None, "logistic", "mlp"):
        raise ConfigError(f"head is {head!r}; it must be logistic or mlp, to be trained", argument="head")
    is_mlp = head == "mlp" or (grid and head is None)
    for name in sorted(flags & _OF_MLP if not is_mlp else ()):
        raise ConfigError(f"{name} is of the paper's head: give --head mlp too, or leave it out", argument=name)
    assert train is not None
    if baseline not in (None, "tfidf"):
        raise ConfigError(f"baseline is {baseline!r}; it must be tfidf", argument="baseline")
    if baseline and not test:
        raise ConfigError(
            "a baseline is measured on texts of which nothing is learnt: give --test", argument="baseline"
        )
    if out is not None:
        check_writable_folder(out, argument="out")
        if (out / HEAD).exists() and not overwrite:
            raise ConfigError(f"{out / HEAD}: is there already; give another folder", argument="overwrite")
    config = HeadConfig(hidden_layers, hidden_size, dropout) if is_mlp else None
    settings = FitSettings(cast("HeadOptimizer", optimizer), learning_rate, batch_size, patience, max_epochs, held_out)
    bad = BadExamples(skip=skip_bad_examples)
    learnt = read_labelled(train, text=text_column, label=label_column, bad=bad)
    labels = {one.label for one in learnt}
    tested = read_labelled(test, text=text_column, label=label_column, known=labels, bad=bad) if test else []
    if summary := bad.summary():
        typer.echo(summary, err=True)
    report = train_intents(
        load(given),
        learnt,
        tested,
        config=config,
        settings=settings,
        grid=grid,
        per_intent=per_intent,
        seeds=range(seed, seed + seeds),
        kind=cast("VectorKind", kind),
        baseline=baseline is not None,
        progress=progress,
        on_progress=(lambda line: typer.echo(line, err=True)) if progress else (lambda line: None),
    )
    values = _values(report, tests=len(tested))
    if out is not None:
        report.classifier.save(out, source=EncoderSource(*map(_absolute, given)), measured=values)
    if as_json:
        typer.echo(json.dumps(values, ensure_ascii=False))
        return
    typer.echo("\n".join(_lines(report)))
    typer.echo(
        "the head was not saved: --out FOLDER keeps it"
        if out is None
        else f"{out}: written. Next: polyencoder intents --predict FILE --head {shlex.quote(str(out))}"
    )


def _show(texts: list[str], predictions: list[Prediction]) -> None:
    """A JSON line for each text."""
    for text, one in zip(texts, predictions, strict=True):
        values = {"text": text, "intent": one.label, "probability": one.probability, "best": dict(one.best)}
        typer.echo(json.dumps(values, ensure_ascii=False))


def _chosen(given: EncoderSource, source: EncoderSource, head: str) -> EncoderSource:
    """The encoder that the flags name, else that of the head, if it is still there."""
    if given != EncoderSource():
        return given
    name = source.model or source.backbone
    if name is None or (os.path.isabs(name) and not there(name)):
        raise ConfigError(f"{head}: its encoder was {name or 'not kept'}, which is not there; name it by --model")
    return source


def _absolute(name: str | None) -> str | None:
    """A path from anywhere; a hub id stays itself."""
    return os.path.abspath(name) if name is not None and there(name) else name


def _values(report: IntentReport, *, tests: int) -> dict[str, Any]:
    """The report as plain data."""
    best = report.best
    return {
        "labels": len(report.classifier.labels),
        "test_texts": tests,
        "head": None if report.config is None else dataclasses.asdict(report.config),
        "settings": dataclasses.asdict(report.settings) | {"learning_rate": report.settings.rate},
        "valid": _pair(report, "valid"),
        "test": _pair(report, "test"),
        "tfidf": _pair(report, "baseline"),
        "seeds": [
            {"seed": one.seed, "texts": one.texts, "epochs": one.epochs, "valid": one.valid}
            | ({"test": one.test.accuracy} if one.test else {})
            | ({"tfidf": one.baseline.accuracy} if one.baseline else {})
            for one in report.results
        ],
        "grid": [
            dataclasses.asdict(one.config) | {"optimizer": one.settings.optimizer, "valid": one.accuracy}
            for one in report.trials
        ],
        "saved_seed": best.seed,
        "calibration_error": best.test.calibration_error if best.test else None,
        "covered": [one._asdict() for one in best.test.covered] if best.test else [],
        "confusions": [one._asdict() for one in best.test.confusions] if best.test else [],
    }


def _pair(report: IntentReport, of: str) -> dict[str, float] | None:
    found = report.accuracy(of)
    return None if found is None else {"accuracy": found[0], "deviation": found[1]}


def _lines(report: IntentReport) -> list[str]:
    best = report.best
    lines = []
    if report.trials and report.config:
        lines.append(f"best of the grid: {report.config}, {report.settings.optimizer}")
    for name, of in (("test", "test"), ("TF-IDF", "baseline"), ("held out", "valid")):
        if (found := report.accuracy(of)) is not None:
            seeds = f" ± {found[1]:.1%} over {len(report.results)} seeds" if len(report.results) > 1 else ""
            lines.append(f"{name:9} accuracy {found[0]:.1%}{seeds}")
    return [*lines, *_of_test(best.test, seed=best.seed)] if best.test else lines


def _of_test(test: Metrics, *, seed: int) -> list[str]:
    """What the test says of the head that is kept."""
    lines = [f"seed {seed}, the best on what was held out; its probabilities are {test.calibration_error:.3f} off"]
    lines += [
        f"of at least {one.probability}: {one.share:.0%} get an answer, {one.accuracy:.1%} of these right"
        for one in test.covered
        if one.accuracy is not None
    ]
    for one in test.confusions[:_SHOWN]:
        said = json.dumps(one.text[:80], ensure_ascii=False)
        lines.append(f"{one.times:3} of {one.of} {one.label!r} taken for {one.taken_for!r}, such as {said}")
    return lines
