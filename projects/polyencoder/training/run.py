"""Trains a ranker from files to a model folder: `polyencoder train` in one call.

>>> report = train_ranker(TrainSettings(backbone="sentence-transformers/all-MiniLM-L6-v2", train="my/train.jsonl",
...                                   valid="my/valid.jsonl", out="runs/my"))
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from polyencoder.config import PROMPTS
from polyencoder.data.pairs import expand_files
from polyencoder.errors import ConfigError, TrainingError
from polyencoder.evaluation.examples import build_token_keys, example_scores
from polyencoder.evaluation.names import NDCG
from polyencoder.evaluation.worst import WorstError, find_worst_errors
from polyencoder.export.card import keep_calibration, write_model_card
from polyencoder.export.folder import README
from polyencoder.export.metadata import parse_hub_id
from polyencoder.export.training_run import TrainingRun, name_measures
from polyencoder.hub.resolve import exists, explain_invalid_hub_id
from polyencoder.index.open import open_index
from polyencoder.modeling.families import CONVERT_SIZES
from polyencoder.pictures import CURVE
from polyencoder.ranker import Ranker
from polyencoder.settings.base import get_flat_defaults, get_flat_values
from polyencoder.settings.train import NEW_RANKER_FIELDS, TrainSettings
from polyencoder.settings.training import TrainingConfig
from polyencoder.storage.files import write_text
from polyencoder.text.vocabulary import get_turn_separator
from polyencoder.training.building import build_objective
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.baselines import Baselines, explain_no_better
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest
from polyencoder.training.callbacks.log import Log, logged_by_default
from polyencoder.training.callbacks.output_scaling import MeasuredScaling
from polyencoder.training.callbacks.progress import ProgressLine
from polyencoder.training.callbacks.tracking import build_recorders, check_trackers
from polyencoder.training.data import Rows, RunData, Splits, open_data
from polyencoder.training.distillation import Distillation
from polyencoder.training.distributed import Processes
from polyencoder.training.folder import CHECKPOINT, RESUME_IGNORES, TEACHER_SCORES, run_folder
from polyencoder.training.objective import RankingObjective
from polyencoder.training.randomness import seed_everything
from polyencoder.training.start import build_starting_ranker, build_untrained_ranker
from polyencoder.training.trainer import Trainer

_log = logging.getLogger(__name__)

SAMPLE = 100  # pairs whose tokens are counted
RANKED, WORST = 200, 5  # validation examples that the card's worst errors are looked for among, and their number

# Settings of the model, by their place in its configuration; defaults are the initial model's
RANKER_FIELDS = tuple(name for name in NEW_RANKER_FIELDS if name != "turn_separator")
TEXT_FIELDS = ("text_truncate", "label_truncate", "history_size", "number_turns", *PROMPTS)
CONVERT_FIELDS = (*CONVERT_SIZES, "dropout")
SHAPE_FIELDS = {*NEW_RANKER_FIELDS, *TEXT_FIELDS, *CONVERT_FIELDS, "extra_contexts"}


@dataclass(frozen=True)
class RunReport:
    """The report of a run: validation metrics of baselines and trained model, and the model's folder."""

    before: dict[str, float]
    """Before training; of a bi-encoder of the backbone if the model was partly random (`as_bi_encoder`)."""
    as_bi_encoder: bool
    tfidf: dict[str, float]
    """Empty if the training responses have no words."""
    trained: dict[str, float]
    """The best evaluation of the run."""
    examples: int
    """The number of examples of each evaluation."""
    out: Path
    updates: int
    seconds: float
    resumed: bool
    stopped: str | None
    """Why the run ended before its goal, if it did."""
    best: int
    """The number of updates of the saved model; 0 for the model before training."""
    warning: str | None
    """Why training may not have helped, if the model is no better than before."""


def train_ranker(
    settings: TrainSettings,
    *,
    train: Rows | Splits | None = None,
    valid: Rows | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunReport:
    """Trains a ranker and writes it, with its model card, to a folder; resumes a run that was killed.

    Args:
        settings: what to train, and how.
        train: records in memory (a `datasets.Dataset`, a list of dictionaries or of `Example`) in place of the files
            that `settings` names, which are then only names; or these by split, as in a `datasets.DatasetDict`.
        valid: the same for the evaluation data (default: the split for validation).
        callbacks: called after the run's own, but before its record and trackers. The state of those that have a `name`
            is in the checkpoint.

    Raises:
        ConfigError: settings that contradict each other, or a tracker whose package is not installed.
        InputError: invalid data.
        TrainingError: training diverged, the last checkpoint could not be written, or another process trains there.
        CheckpointError: the folder holds a run with other settings, or a model that no run wrote.
    """
    with run_folder(Path(settings.data.out)) as processes, logged_by_default(show=processes.is_first):
        return _train(settings, processes, train=train, valid=valid, callbacks=callbacks)


def _train(
    settings: TrainSettings,
    processes: Processes,
    *,
    train: Rows | Splits | None,
    valid: Rows | None,
    callbacks: Sequence[Callback],
) -> RunReport:
    check_trackers(settings.trackers.report_to)
    if train is not None and settings.data.streaming:
        raise ConfigError("streaming reads files: leave it out with training data in memory", argument="streaming")
    for files, rows in ((settings.data.train, train), (settings.data.valid, valid)):
        if files and rows is None:
            expand_files(files)  # missing files are an error before the model is loaded
    if settings.preset is not None and processes.is_first:
        _log.info("preset %s: %s", settings.preset, ", ".join(f"{k} {v}" for k, v in settings.preset_values.items()))
    if "gather_negatives" in settings.explicit and not settings.training.gather_negatives and processes.count == 1:
        raise ConfigError(
            "gather_negatives off is read only in several processes: leave it out", argument="gather_negatives"
        )
    backbone = settings.model.backbone
    if backbone and not exists(backbone) and (problem := explain_invalid_hub_id(backbone)):
        raise ConfigError(f"backbone {backbone}: {problem}; give a folder or the name of a model", argument="backbone")
    data = open_data(settings, train=train, valid=valid)  # what is wrong with it is an error before the model is loaded
    seed_everything(settings.training.seed)
    ranker = build_starting_ranker(settings)
    if settings.data.candidates_of:
        open_index(settings.data.candidates_of, ranker).close()  # an error where its vectors are another model's
    metric = "hits@1" if all(example.labels is None for example in data.valid) else NDCG
    best = KeepBest(ranker, settings.data.out, metric=metric, patience=settings.evaluation.patience)
    config = build_training_config(settings, ranker)
    objective = build_objective(ranker, config)
    checkpoints = _build_checkpoints(settings, ranker, data, processes, objective)
    baselines = Baselines(
        data.valid,
        untrained=partial(build_untrained_ranker, settings),
        responses=data.responses,
        on_untrained=None if settings.convert.vocabulary else best.keep,  # a new ConveRT is random
    )
    displays, recorders = _build_output(settings, is_first=processes.is_first)
    trainer = Trainer(
        ranker,
        config,
        train=data.train,
        sampler=data.sampler,
        objective=objective,
        callbacks=[
            *([MeasuredScaling()] if settings.model.output_scaling == "auto" else []),
            *displays,  # first: it counts a batch before the evaluation after it
            Evaluation(ranker, data.valid, every=max(1, round(data.size / settings.evaluation.evaluations))),
            best,
            checkpoints,
            baselines,
            *callbacks,
            *recorders,  # last: an error of the others at the end is the run's
        ],
    )
    expected = _log_run_summary(trainer, data) if processes.is_first else 0
    progress = trainer.fit()
    mining = config.hard_negatives
    if not mining.why_unused(expected) and (reason := mining.why_unused(progress.updates)) and processes.is_first:
        _log.warning(reason)  # time or patience ended it
    if trainer.skipped_examples and processes.is_first:
        _log.warning("skipped %d times: an example whose candidates are all right", trainer.skipped_examples)
    if settings.data.streaming and data.bad.count:
        _log.warning(data.bad.summarize())
    if best.trained is None:
        raise TrainingError(
            f"nothing was trained: a callback ended the run before its first update ({trainer.stopped})"
        )
    warning = explain_no_better(
        trainer,
        before=baselines.before,
        best=best.trained,
        metric=metric,
        stands_in=baselines.stands_in,
        responses=data.responses(),
    )
    if processes.is_first:
        _write_card(trainer, settings, best, baselines, data=data)
    return RunReport(
        baselines.before,
        baselines.stands_in,
        baselines.tfidf,
        best.trained,
        len(data.valid),
        Path(settings.data.out),
        progress.updates,
        progress.seconds,
        checkpoints.resumed,
        None if trainer.is_over else trainer.stopped,
        best.updates,
        warning,
    )


def build_training_config(settings: TrainSettings, ranker: Ranker) -> TrainingConfig:
    """The run's `TrainingConfig`; a quantized ConveRT trains in 16 bits on a GPU, with a loss scale."""
    scores = settings.training.distillation.scores or str(Path(settings.data.out) / TEACHER_SCORES)
    config = settings.training.changed(teacher_scores=scores)
    if ranker.model.loss_scale is None:
        return config
    halves = ranker.device.type == "cuda" and not settings.explicit & {"precision", "bf16"}
    return replace(config, loss_scale=ranker.model.loss_scale, precision="float16" if halves else config.precision)


def _build_checkpoints(
    settings: TrainSettings, ranker: Ranker, data: RunData, processes: Processes, objective: RankingObjective
) -> Checkpoints:
    # each process's part of the data depends on their number
    data_settings = {"processes": processes.count, "data": f"{data.size} pairs, digest {data.digest[:16]}"}
    teacher = {}
    if isinstance(loss := objective.loss, Distillation):
        teacher["teacher's weights and precision"] = loss.teacher.digest
    values = {
        name: value for name, value in get_flat_values(settings).items() if name not in RESUME_IGNORES | SHAPE_FIELDS
    }
    return Checkpoints(
        Path(settings.data.out) / CHECKPOINT,
        settings=values | _get_model_settings(ranker) | data_settings | teacher,
        defaults={**get_flat_defaults(settings), **teacher},
        # a bad record of a stream may come after hours
        changeable=RESUME_IGNORES | {"max_seconds", "skip_bad_examples"},
        explicit=settings.explicit,
        instead=f"continue its model in another folder (init {settings.data.out})",
        every_seconds=settings.evaluation.save_every_seconds,
    )


def _get_model_settings(ranker: Ranker) -> dict[str, Any]:
    """The model's values of the settings in `SHAPE_FIELDS`."""
    config = ranker.model.config
    shape: dict[str, Any] = {name: getattr(config, name) for name in RANKER_FIELDS}
    shape |= {name: getattr(config.text, name) for name in TEXT_FIELDS}
    shape["turn_separator"] = get_turn_separator(config.text)
    if config.convert is not None:
        shape |= {name: getattr(config.convert, name) for name in CONVERT_FIELDS}
        shape["extra_contexts"] = shape.pop("history_size") - 1
    return shape


def _log_run_summary(trainer: Trainer, data: RunData) -> float:
    """Logs the pairs, their lengths in tokens, and parameters; warns of a run that is too short for the model.

    Returns the updates of the run, if time does not end it; inf if they are not known.
    """
    pairs = data.train
    sample = pairs[:SAMPLE] if isinstance(pairs, Sequence) else list(islice(pairs.iter_items(), SAMPLE))
    contexts = trainer.text.batch_contexts([example.turns for example in sample]).mask.sum() / len(sample)
    labels = trainer.text.batch_candidates([example.label for example in sample]).mask.sum() / len(sample)
    parameters = list(trainer.model.parameters())
    _log.info(
        "%s pairs, of about %d and %d tokens; %s parameters, %s of them trained",
        f"{data.size:,}",
        contexts,
        labels,
        f"{sum(p.numel() for p in parameters):,}",
        f"{sum(p.numel() for p in parameters if p.requires_grad):,}",
    )
    config, batch = trainer.config, trainer.config.batch_size * trainer.processes.count
    updates = trainer.goal.compute_total_updates(batch=batch, accumulate=config.accumulate)
    if updates is None:
        return math.inf
    for reason in (
        trainer.model.explain_too_short(updates * config.accumulate),
        config.hard_negatives.why_unused(updates),
    ):
        if reason:
            _log.warning(reason)
    return updates


def _build_output(settings: TrainSettings, *, is_first: bool) -> tuple[list[Callback], list[Callback]]:
    """The first process's output: a progress line in a terminal, else log lines, a curve; the record and trackers."""
    if not is_first:
        return [Log(every_seconds=None)], []
    out = Path(settings.data.out)
    curve = LearningCurve(
        out / CURVE, title=f"{out.name}: {settings.model.architecture} on {Path(settings.data.train).name}"
    )
    recorded = build_recorders(settings.trackers, curve, out=out, options=get_flat_values(settings))
    if not ProgressLine.has_terminal():
        return [Log(), curve], recorded
    line = ProgressLine(handlers=logging.getLogger("polyencoder").handlers)
    return [Log(every_seconds=None), line, curve], recorded


def _write_card(
    trainer: Trainer, settings: TrainSettings, best: KeepBest, baselines: Baselines, *, data: RunData
) -> None:
    out = Path(settings.data.out)
    ranker = Ranker.from_pretrained(out, device=str(trainer.device))  # the saved model, not the last update's
    resolved = get_flat_values(settings) | {"batch_size": trainer.config.batch_size}
    if ranker.model.has_vectors and not ranker.model.has_one_vector:
        resolved["n_codes"] = ranker.model.config.n_codes
    flags = {name: value for name, value in resolved.items() if name not in RESUME_IGNORES and value is not None}
    reports = name_measures(
        trained=best.report or {}, before=baselines.before, stands_in=baselines.stands_in, tfidf=baselines.tfidf
    )
    run = TrainingRun(
        flags,
        {who: {**measures, "examples": len(data.valid)} for who, measures in reports.items()},
        command="polyencoder train",
        updates=best.updates,
        examples=best.examples,
        pairs=data.size,
        seed=settings.training.seed,
        base_model=parse_hub_id(settings.model.init) or parse_hub_id(settings.model.backbone),
    )
    curve, worst = (out / CURVE).is_file(), _find_worst(ranker, data)
    card = write_model_card(ranker, name=out.resolve().name, run=run, curve=curve, worst=worst)
    if ranker.calibration is not None and (out / README).is_file():
        card = keep_calibration(card, earlier=(out / README).read_text(encoding="utf-8"))
    write_text(out / README, card)


def _find_worst(ranker: Ranker, data: RunData) -> list[WorstError]:
    """The kept model's worst errors among the first validation examples."""
    if ranker.model.has_foreign_candidates:  # which it does not read
        return []
    examples = data.valid[:RANKED]
    scores, keys = dict(example_scores(ranker, examples)), build_token_keys(ranker, examples)
    return find_worst_errors(examples, scores, keys=keys, count=WORST)
