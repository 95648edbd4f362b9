"""Pre-trains an encoder from files to a folder: `polyencoder pretrain` in one call.

>>> report = pretrain(PretrainingSettings(corpus=("talks.jsonl",), vocabulary="pieces", out="runs/my", max_steps=1000))
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from polyencoder.data.epochs import Reader
from polyencoder.data.readers import BadExamples, expand
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import InputError
from polyencoder.pictures import CURVE
from polyencoder.pretraining.batches import PairBatches, PairInputs
from polyencoder.pretraining.callbacks import PANELS, HeldOut, KeepEncoder, PretrainingLog
from polyencoder.pretraining.card import format_ranker_flags, write_encoder
from polyencoder.pretraining.corpus import Corpus, PairExample
from polyencoder.pretraining.objective import Chance, PretrainingObjective
from polyencoder.pretraining.start import build_starting_model
from polyencoder.settings.base import get_flat_defaults, get_flat_values
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.storage.digests import compute_fingerprint, iter_file_parts
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.log import logged_by_default
from polyencoder.training.callbacks.tracking import build_recorders, check_trackers
from polyencoder.training.distributed import Processes
from polyencoder.training.folder import CHECKPOINT, RESUME_IGNORES, run_folder
from polyencoder.training.randomness import seed_everything
from polyencoder.training.trainer import Trainer

_log = logging.getLogger(__name__)

NOT_ON_THE_CARD = {"corpus", "out", "valid", "vocabulary", "backbone", "device"}  # paths, or shown elsewhere
COUNTED = 10_000  # examples whose words are counted
SPREAD = 20  # held-out examples are drawn from this many times as many, so that they come from more documents
ENDS = {"max_steps", "max_seconds", "warmup_steps"}  # settings that may change, too, if the learning rates do not


@dataclass(frozen=True)
class PretrainingReport:
    """The report of pre-training: held-out metrics before and after (`HeldOut`), and the folder."""

    before: dict[str, float]
    trained: dict[str, float]
    out: Path
    updates: int
    seconds: float
    tokens: int
    """Tokens of all processes, without padding."""
    resumed: bool
    ranker_flags: str
    """Flags of `polyencoder train` for a ranker from this encoder, as on its card."""
    at_chance: list[str]
    """Lines on metrics that are no better than chance."""


def pretrain(settings: PretrainingSettings) -> PretrainingReport:
    """Pre-trains an encoder on files and writes it, with its card, to a folder; resumes a run that was killed.

    Raises:
        ConfigError: settings that contradict each other.
        InputError: an invalid corpus.
        TrainingError: training diverged, or another process trains in that folder.
        CheckpointError: the folder holds a run with other settings, or a model that no run wrote.
    """
    with run_folder(Path(settings.data.out)) as processes, logged_by_default(show=processes.is_first):
        return _pretrain(settings, processes)


def _pretrain(settings: PretrainingSettings, processes: Processes) -> PretrainingReport:
    is_first, out = processes.is_first, settings.data.out
    check_trackers(settings.trackers.report_to)
    tokens, seed = settings.objective.tokens_per_batch, settings.objective.seed
    bad = BadExamples(skip=settings.data.skip_bad_examples)
    train, held_out = _open_corpora(settings, bad)
    seed_everything(seed)
    pretrained = build_starting_model(settings)
    inputs = PairInputs(
        pretrained.text, longest=pretrained.longest, masking=pretrained.masking, next=settings.objective.next
    )
    objective = PretrainingObjective(pretrained.model)
    evaluation = HeldOut(objective, held_out, inputs, tokens=tokens, every=settings.evaluation.evaluate_every)
    reader = Reader(processes.rank, processes.count)
    batches = PairBatches(train, inputs, tokens=tokens, seed=seed, reader=reader)
    log = PretrainingLog(every_seconds=10.0 if is_first else None)
    data = {"data": f"{len(train.files)} files, digest {compute_fingerprint(iter_file_parts(train.files))[:16]}"}
    checkpoints = Checkpoints(
        Path(settings.data.out) / CHECKPOINT,
        settings=_get_run_settings(settings) | {"processes": processes.count} | data,
        defaults={**get_flat_defaults(settings), **data},
        changeable=RESUME_IGNORES,
        every_seconds=settings.evaluation.save_every_seconds,
    )
    curve = LearningCurve(Path(out) / CURVE, title=Path(out).name, panels=PANELS)
    values = get_flat_values(settings)

    def save(report: Mapping[str, float]) -> None:
        write_encoder(
            pretrained,
            settings.data.out,
            report,
            backbone=settings.encoder.backbone,
            corpus=settings.data.corpus,
            flags={name: values[name] for name in values if name in settings.explicit - NOT_ON_THE_CARD},
            seed=seed,
            updates=trainer.updates.count,
            tokens=log.tokens * processes.count,
        )

    trainer = Trainer(
        pretrained,
        settings.objective.training,
        batches=batches,
        objective=objective,
        callbacks=[
            batches,
            log,
            evaluation,
            KeepEncoder(save),
            *([curve] if is_first else []),
            checkpoints,
            *(build_recorders(settings.trackers, curve, out=Path(out), options=values) if is_first else []),
        ],
    )
    before = evaluation.measure(trainer)
    progress = trainer.fit()
    if bad.count and is_first:
        _log.warning(bad.summarize())
    chance = Chance.from_batches(evaluation.batches, islice(train.iter_items(), COUNTED), pretrained.text)
    return PretrainingReport(
        before,
        evaluation.report,
        Path(settings.data.out),
        progress.updates,
        progress.seconds,
        log.tokens * processes.count,
        checkpoints.resumed,
        format_ranker_flags(pretrained),
        chance.describe_not_beaten(evaluation.report),
    )


def _open_corpora(settings: PretrainingSettings, bad: BadExamples) -> tuple[Corpus, list[PairExample]]:
    """Opens the training corpus, and held-out examples from other files or a share of the documents."""
    files = expand(settings.data.corpus)
    if unseekable := next((file for file in files if not os.path.isfile(file)), None):
        raise InputError(f"{unseekable}: cannot be read again in each epoch", argument="corpus")
    options: dict[str, Any] = {"history": settings.encoder.history_size, "bad": bad}
    share = 0.0 if settings.data.valid else settings.data.held_out
    train = Corpus(files, part="train", held_out=share, buffer=settings.data.shuffle_buffer, **options)
    if next(train.iter_items(), None) is None:
        rest = f", with {share:.2%} held out" if share else ""
        raise InputError(
            f"{', '.join(settings.data.corpus)}: has no training examples{rest}; "
            "an example is a turn or a sentence with another before it",
            argument="corpus",
        )
    if settings.data.valid:
        valid = Corpus(expand(settings.data.valid), **options)
    else:
        valid = Corpus(files, part="held out", held_out=share, **options)
    first = islice(valid.iter_items(), SPREAD * settings.data.held_out_examples)
    examples = SeededRandom("held out").sample(list(first), settings.data.held_out_examples)
    if not examples:
        raise InputError(
            f"{settings.data.valid or ', '.join(settings.data.corpus)}: has no example to evaluate on"
            + ("" if settings.data.valid else f", {share:.2%} of its documents held out; hold out more, or give valid"),
            argument="valid" if settings.data.valid else "held_out",
        )
    _log.info("%d held-out examples; %d training files", len(examples), len(files))
    return train, examples


def _get_run_settings(settings: PretrainingSettings) -> dict[str, Any]:
    """The settings that must be equal in a resumed run, as plain values."""
    values = get_flat_values(settings)
    if settings.objective.schedule not in ("linear", "cosine"):  # the others' rates do not depend on the last update
        values = {name: value for name, value in values.items() if name not in ENDS}
        values["warmup_steps"] = settings.objective.training.schedule.warmup_updates
    return {name: value for name, value in values.items() if name not in RESUME_IGNORES}
