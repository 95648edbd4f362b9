"""`polyencoder train` and `polyencoder pretrain`: a ranker on your own pairs, an encoder on your own texts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from polyencoder.cli.shared.output import say
from polyencoder.config import Architecture
from polyencoder.modeling.families import get_family
from polyencoder.settings.base import Settings, get_flat_values
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.settings.train import TrainSettings
from polyencoder.storage.files import check_writable_folder

if TYPE_CHECKING:
    from polyencoder.pretraining.run import PretrainingReport
    from polyencoder.training.run import RunReport


def train(settings: TrainSettings) -> None:
    """Train a ranker on your own pairs, without ParlAI; torchrun starts several processes."""
    from polyencoder.training.callbacks.log import logged
    from polyencoder.training.run import train_ranker

    check_writable_folder(settings.data.out, argument="out")
    with join_group(settings) as (settings, first), logged(show=first):
        report = train_ranker(settings)
        if first:
            say(_format_summary(report, architecture=settings.model.architecture))
            if report.warning:
                say(f"warning: {report.warning}", err=True)


def _format_summary(report: RunReport, *, architecture: Architecture) -> str:
    from polyencoder.evaluation.names import select_main_measures
    from polyencoder.evaluation.significance import SMALL_SAMPLE, compute_standard_error

    rows = {"TF-IDF": report.tfidf, "before training": report.before, "trained": report.trained}
    rows = {who: metrics for who, metrics in rows.items() if metrics}
    measures = select_main_measures(report.trained)
    first = next(iter(measures))
    lines = [f"{who:16} {first} {_get_first(metrics, first):.3f}" for who, metrics in rows.items()]
    if report.as_bi_encoder:
        lines[-2] += ", of a bi-encoder of the backbone: the new model's other layers are random"
    after, before = _get_first(report.trained, first), _get_first(report.before, first)
    margin = ""
    if report.examples < SMALL_SAMPLE:
        error = math.hypot(*(compute_standard_error(share, report.examples) for share in (after, before)))
        margin = f" (standard error {error:.3f}: {report.examples} examples are few)"
    ended = f"; ended early: {report.stopped}" if report.stopped else ""
    which = f"the model after {report.best} of {report.updates} updates" if report.best else "the model before training"
    lines += [
        f"training gained {after - before:+.3f}{margin} in {report.updates} updates, {report.seconds:.0f} s{ended}; "
        f"kept: {which}",
        f"{report.out}: written. Next: {_suggest_next(shlex.quote(str(report.out)), architecture)}",
    ]
    return "\n".join(lines)


def _suggest_next(model: str, architecture: Architecture) -> str:
    """A next command for the trained model: search or, for a cross-encoder, evaluation."""
    if not get_family(architecture).can.has_vectors:
        return f"polyencoder evaluate --model {model} --data FILE, or --rerank {model} in polyencoder search and serve"
    return f"polyencoder index --model {model} --candidates FILE --out INDEX"


def _get_first(metrics: Mapping[str, float], name: str) -> float:
    return metrics.get(name, metrics["hits@1"])


def pretrain_encoder(settings: PretrainingSettings) -> None:
    """Pre-train an encoder with masked words and next utterances; torchrun starts several processes."""
    from polyencoder.pretraining.run import pretrain
    from polyencoder.training.callbacks.log import logged

    check_writable_folder(settings.data.out, argument="out")
    with join_group(settings) as (settings, first), logged(show=first):
        report = pretrain(settings)
        if first:
            say(_format_pretraining(report))
            if report.at_chance:
                advice = "train longer, or with another learning rate"
                say(f"warning: the classifier learned little: {'; '.join(report.at_chance)}. {advice}", err=True)


def _format_pretraining(report: PretrainingReport) -> str:
    rows = {"before": report.before, "pre-trained": report.trained}
    lines = [
        f"{who:12} masked words: perplexity {measures['perplexity']:.1f}, accuracy {measures['masked_accuracy']:.3f}; "
        f"next utterances: accuracy {measures['next_accuracy']:.3f}"
        for who, measures in rows.items()
    ]
    return "\n".join(
        [
            *lines,
            f"{report.updates:,} updates, {report.tokens:,} tokens, {report.seconds:.0f} s",
            f"{report.out}: written. Next: polyencoder train --backbone {shlex.quote(str(report.out))} "
            "--train FILE --out FOLDER" + report.ranker_flags,
        ]
    )


T = TypeVar("T", bound=Settings)


@contextmanager
def join_group(settings: T) -> Iterator[tuple[T, bool]]:
    """The settings for this process, and whether it is the first, which alone writes reports."""
    from polyencoder.training.process_group import Ranks, is_grouped, process_group

    if not is_grouped():
        yield settings, True
        return
    ranks = Ranks.from_environment()
    values = get_flat_values(settings)
    shared = {name: value for name, value in values.items() if name not in ("out", "device")}
    with process_group(ranks, shared, on_cpu=values["device"] == "cpu") as device:
        yield settings.changed(device=str(device)), ranks.rank == 0
