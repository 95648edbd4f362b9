"""`polyencoder intents`: intent classifiers on the vectors of a frozen encoder."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from polyencoder.cli.shared.loading import load_encoder
from polyencoder.cli.shared.output import say
from polyencoder.config import VectorKind
from polyencoder.data.readers import BadExamples
from polyencoder.errors import ConfigError
from polyencoder.hub.resolve import exists
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerOrBackbone
from polyencoder.settings.fields import Count, Files, Needs
from polyencoder.settings.intents import FitSettings, HeadConfig
from polyencoder.storage.files import check_writable, check_writable_folder

if TYPE_CHECKING:
    from polyencoder.intents.classifier import EncoderSource, Prediction
    from polyencoder.intents.metrics import ClassifierMetrics
    from polyencoder.intents.training import IntentReport

_OF_MLP = Needs("head", ("mlp",))
_SHOWN = 5  # confusions

intents = App(name="intents")


@settings(panel="Data")
class IntentData(Settings):
    """The labelled texts, and where the head is written."""

    train: Files
    """FILE or GLOB, comma-separated: texts and labels as JSON lines, CSV, TSV or Parquet."""
    test: Files | None = None
    """Test data in the same form."""
    out: Annotated[Path | None, Parameter(alias="-o")] = None
    """The folder to write the trained head to."""
    overwrite: Annotated[bool, Needs("out")] = False
    """Replace a head in --out."""
    text_column: str = "text"
    """The column with texts."""
    label_column: str | None = None
    """The column with labels (default: label, intent or category)."""
    skip_bad_examples: bool = False
    """Skip and count records that cannot be used."""
    per_intent: int | None = None
    """Train on a sample of this many texts per label."""


@settings()
class IntentSettings(Settings):
    """Settings of the training of intent classifiers."""

    data: IntentData
    encoder: RankerOrBackbone = field(default_factory=RankerOrBackbone)
    seeds: Count = 1
    """Number of runs, with seeds from --seed upwards."""
    seed: int = 0
    """Seed of sampling, of held-out texts and of the head."""
    head: Literal["logistic", "mlp"] = "logistic"
    """logistic regression, or mlp, the paper's head (default: mlp with --grid, else logistic)."""
    grid: Annotated[bool, _OF_MLP] = False
    """Search the paper's Table 8, 50 heads, instead of the settings of one."""
    config: Annotated[HeadConfig, _OF_MLP] = field(default_factory=HeadConfig)
    fit: FitSettings = field(default_factory=FitSettings)
    kind: VectorKind = "pooled"
    """Which vectors, as in polyencoder encode."""
    baseline: Annotated[Literal["tfidf"] | None, Needs("test")] = None
    """tfidf: also measure a linear classifier on TF-IDF."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print the report as one JSON object."""
    progress: bool = True
    """Show progress on standard error."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"head": "mlp"} if given.get("grid") else {}


@intents.command
def train(*, settings: IntentSettings) -> None:
    """Train and evaluate an intent classifier on a frozen encoder's vectors."""
    from polyencoder.intents.classifier import HEAD, HEAD_WEIGHTS, EncoderSource
    from polyencoder.intents.examples import read_labelled
    from polyencoder.intents.training import train_intents

    data, encoder, out = settings.data, settings.encoder, settings.data.out
    if out is not None:
        check_writable_folder(out, argument="out")
        for name in (HEAD, HEAD_WEIGHTS):
            check_writable(out / name, argument="out", overwrite=data.overwrite)
    bad = BadExamples(skip=data.skip_bad_examples)
    columns: dict[str, Any] = {"text": data.text_column, "label": data.label_column}
    texts = read_labelled(data.train, **columns, bad=bad)
    labels = {one.label for one in texts}
    tests = read_labelled(data.test, **columns, known=labels, bad=bad) if data.test else []
    if summary := bad.summary():
        say(summary, err=True)
    report = train_intents(
        load_encoder(encoder),
        texts,
        tests,
        config=settings.config if settings.head == "mlp" else None,
        settings=settings.fit,
        grid=settings.grid,
        per_intent=data.per_intent,
        seeds=range(settings.seed, settings.seed + settings.seeds),
        kind=settings.kind,
        baseline=settings.baseline is not None,
        progress=settings.progress,
        on_progress=(lambda line: say(line, err=True)) if settings.progress else (lambda line: None),
    )
    values = report.as_dict(test_texts=len(tests))
    if out is not None:
        source = EncoderSource(_absolute(encoder.model), _absolute(encoder.backbone))
        report.classifier.save(out, source=source, measured=values, overwrite=data.overwrite)
    if settings.as_json:
        say(json.dumps(values, ensure_ascii=False))
        return
    say("\n".join(_lines(report)))
    say(
        "the head was not saved: --out FOLDER keeps it"
        if out is None
        else f"{out}: written. Next: polyencoder intents predict FILE --head {shlex.quote(str(out))}"
    )


@settings()
class PredictSettings(Settings):
    """Which head labels texts, and which labels are shown."""

    head: str
    """The folder of a trained head."""
    encoder: RankerOrBackbone = field(default_factory=RankerOrBackbone)
    text_column: str = "text"
    """The column with texts."""
    min_probability: float = 0.0
    """Print null (none of these) for less probable intents; 0 to 1."""
    top_k: Count = 3
    """How many intents to show with their probabilities."""


@intents.command
def predict(texts: str, /, *, settings: PredictSettings) -> None:
    """Label texts by a trained head: one JSON line per text.

    Args:
        texts: FILE or GLOB with texts.
    """
    from polyencoder.intents.classifier import IntentClassifier
    from polyencoder.intents.examples import read_plain

    rows = read_plain(texts, text=settings.text_column)
    classifier = IntentClassifier.from_pretrained(
        settings.head, lambda source: load_encoder(_chosen(settings.encoder, source, settings.head))
    )
    _show(rows, classifier.predict(rows, min_probability=settings.min_probability, top_k=settings.top_k))


def _show(texts: list[str], predictions: list[Prediction]) -> None:
    """A JSON line for each text."""
    for text, one in zip(texts, predictions, strict=True):
        values = {"text": text, "intent": one.label, "probability": one.probability, "best": dict(one.best)}
        say(json.dumps(values, ensure_ascii=False))


def _chosen(given: RankerOrBackbone, source: EncoderSource, head: str) -> RankerOrBackbone:
    """The encoder that the flags name, else the head's, if it still exists."""
    if given.model or given.backbone:
        return given
    name = source.model or source.backbone
    if name is None or (os.path.isabs(name) and not exists(name)):
        raise ConfigError(f"{head}: its encoder was {name or 'not kept'}, which is not there; name it by --model")
    return replace(given, model=source.model, backbone=source.backbone)


def _absolute(name: str | None) -> str | None:
    """Makes a path absolute; a hub id is unchanged."""
    return os.path.abspath(name) if name is not None and exists(name) else name


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


def _of_test(test: ClassifierMetrics, *, seed: int) -> list[str]:
    """The test metrics of the saved head."""
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
