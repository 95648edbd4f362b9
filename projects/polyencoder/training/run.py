"""A whole training run from files to a model folder: what `polyencoder train` does, in one call.

>>> report = train_ranker(RunSettings(backbone="sentence-transformers/all-MiniLM-L6-v2", train="my/train.jsonl",
...                                   valid="my/valid.jsonl", out="runs/my"))
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from polyencoder.data.collator import TrainingExample
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import HUB, Columns, Pair, read_pairs
from polyencoder.data.readers import expand
from polyencoder.data.readers.examples import Example
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation import Tally, evaluate, of_example, ranks
from polyencoder.evaluation.names import main_measures
from polyencoder.evaluation.tfidf import TfidfVectors, TfidfWeights
from polyencoder.export.card import Run, model_card
from polyencoder.export.folder import README
from polyencoder.files import write_text
from polyencoder.ranker import Ranker
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.callbacks.log import Log
from polyencoder.training.callbacks.progress import ProgressLine
from polyencoder.training.callbacks.record import Record
from polyencoder.training.config import SHARED_CANDIDATES
from polyencoder.training.distillation import Distillation
from polyencoder.training.hard_negatives import HardNegatives, parse_ranks
from polyencoder.training.lock import TrainingLock
from polyencoder.training.objective import HOPELESS, Loss, Ranking
from polyencoder.training.randomness import seed_everything
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.settings import RunSettings
from polyencoder.training.teacher import Teacher
from polyencoder.training.trainer import Trainer

__all__ = ["RunReport", "train_ranker"]

_log = logging.getLogger(__name__)

CHECKPOINT, RECORD, CURVE = "training/checkpoint.pt", "training/run.json", "training/curve.png"
HELD_OUT, HELD_OUT_SHARE = 1_000, 10  # without validation data: at most so many pairs, and a tenth
METRIC = "hits@1"
NOT_OF_THE_RUN = {"out", "device"}  # settings that may be others when it goes on, or in another process


@dataclass(frozen=True)
class RunReport:
    """What a run gave: R@1 and the like of the validation examples, by who ranked them, and where the model is."""

    before: dict[str, float]
    """Of the encoder as it came: a bi-encoder of it, or the ranker that was trained on."""
    tfidf: dict[str, float]
    trained: dict[str, float]
    out: Path
    updates: int
    seconds: float
    resumed: bool
    stopped: str | None
    """Why the run ended before its goal, if it did."""


def train_ranker(settings: RunSettings) -> RunReport:
    """Train a ranker on files and write it, with its model card, to a folder; go on where such a run was killed.

    Raises:
        ConfigError: settings that contradict each other.
        InputError: data that cannot be used.
        TrainingError: the losses are not finite again and again, the end could not be written, or another process
            trains in that folder.
        CheckpointError: the folder holds a run with other settings.
    """
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    lock = TrainingLock.of(Path(settings.out) / CHECKPOINT) if is_first else None
    try:
        return _train(settings, is_first=is_first)
    finally:
        if lock is not None:
            lock.release()


def _train(settings: RunSettings, *, is_first: bool) -> RunReport:
    train, valid = _data(settings)
    seed_everything(settings.seed)
    ranker = _ranker(settings)
    inline = settings.source != "batch"
    sampler = NegativeSampler((p.response for p in train), count=settings.num_negatives, seed=settings.seed)
    examples = _with_candidates(valid, sampler)
    before, tfidf = _before(settings, ranker, examples), _tfidf(train, examples)
    _say("before", before)
    _say("TF-IDF", tfidf)
    best = KeepBest(ranker, settings.out, metric=METRIC, patience=settings.patience)
    loss = _loss(settings)
    config = settings.training()
    every = max(1, round(len(train) / settings.evaluations))
    checkpoints = Checkpoints(
        Path(settings.out) / CHECKPOINT, settings=_of_the_run(settings), every_seconds=settings.save_every_seconds
    )
    record = [Record(Path(settings.out) / RECORD, dataclasses.asdict(settings))] if is_first else []
    callbacks: list[Callback] = [*_hard_negatives(settings, ranker), Evaluation(ranker, examples, every=every)]
    trainer = Trainer(
        ranker,
        config,
        train=[TrainingExample([p.context], p.response, p.candidates if inline else None) for p in train],
        sampler=sampler if inline else None,
        callbacks=[*callbacks, best, *_shown(settings, is_first=is_first), checkpoints, *record],
        objective=Ranking(
            ranker.model,
            ranker.text,
            loss=loss,
            gather_negatives=config.gather_negatives and settings.source in SHARED_CANDIDATES,
            grad_cache=config.grad_cache,
            pair_tokens=config.pair_tokens,
            hopeless_after=None if settings.hard_negatives else HOPELESS,
        ),
        with_turns=loss is not None,
    )
    progress = trainer.fit()
    assert best.report is not None  # there is an evaluation at the end of every run
    report = RunReport(
        before,
        tfidf,
        best.report,
        Path(settings.out),
        progress.updates,
        progress.seconds,
        checkpoints.resumed,
        trainer.stopped,
    )
    if is_first:
        _write_card(ranker, settings, best, evaluated=len(examples))
    return report


def _data(settings: RunSettings) -> tuple[list[Pair], list[Pair]]:
    """The pairs of both parts; without validation data some are held out of the training data, always the same."""
    columns = Columns(settings.context, settings.response, settings.column_candidates)

    def read(names: str) -> list[Pair]:
        files = [names] if names.startswith(HUB) else expand(names)
        return [pair for file in files for pair in read_pairs(file, columns=columns)]

    train = read(settings.train)
    if len(train) < 2:
        raise InputError(f"{settings.train}: has {len(train)} pairs to learn from; there must be at least 2")
    if settings.valid is not None:
        valid = read(settings.valid)
        if not valid:
            raise InputError(f"{settings.valid}: has no pair to evaluate on")
        return train, valid
    held_out = min(HELD_OUT, max(1, len(train) // HELD_OUT_SHARE))
    _log.warning("no validation data: the last %d of the %d pairs are held out", held_out, len(train))
    return train[:-held_out], train[-held_out:]


def _with_candidates(pairs: Sequence[Pair], sampler: NegativeSampler) -> list[Example]:
    """Examples to rank: with their own candidates, or as many drawn from the training responses, always the same."""
    return [
        (
            pair.context.split("\n"),
            pair.response,
            pair.candidates or sampler.candidates([pair.response], key=f"{pair.context}\n{pair.response}"),
        )
        for pair in pairs
    ]


def _ranker(settings: RunSettings) -> Ranker:
    if settings.init:
        ranker = Ranker.from_pretrained(settings.init, device=settings.device)
        if (found := ranker.model.config.architecture) != settings.architecture:
            raise ConfigError(
                f"{settings.init} is a {found}-encoder, not {settings.architecture}: give its architecture"
            )
        return ranker
    assert settings.backbone is not None
    return Ranker.from_backbone(
        settings.backbone, settings.architecture, device=settings.device, text=_text(settings), **_model(settings)
    )


def _text(settings: RunSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("text_truncate", "label_truncate", "history_size")}


def _model(settings: RunSettings) -> dict[str, Any]:
    """The fields of the model's configuration that were given."""
    names = ("reduction", "normalize", "output_scaling")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return given | {"share_encoders": settings.share_encoders, "n_codes": settings.n_codes}


def _before(settings: RunSettings, ranker: Ranker, examples: Sequence[Example]) -> dict[str, float]:
    """The metrics of what the run starts from; a new poly- or cross-encoder is random, so its encoder's own vectors."""
    if settings.init or settings.architecture == "bi":
        start = ranker
    else:
        assert settings.backbone is not None
        given = {name: value for name, value in _model(settings).items() if name != "n_codes"}
        start = Ranker.from_backbone(settings.backbone, "bi", device=settings.device, text=_text(settings), **given)
    return evaluate(start, examples).report()


def _tfidf(train: Sequence[Pair], examples: Sequence[Example]) -> dict[str, float]:
    """The metrics of the keyword baseline, which reads the last turn. It has no loss."""
    vectors = TfidfVectors(TfidfWeights.fit((pair.response for pair in train), ngrams=1, task="train"))
    tally = Tally()
    for turns, label, candidates in examples:
        scores = torch.from_numpy(vectors.cosines([turns[-1]], list(candidates)))
        rank = int(ranks(scores, torch.tensor([candidates.index(label)])))
        tally.add([of_example(rank, 0.0, len(candidates))])
    return {name: value for name, value in tally.report().items() if name != "loss"}


def _loss(settings: RunSettings) -> Loss | None:
    if settings.teacher is None:
        return None
    teacher = Ranker.from_pretrained(settings.teacher, device=settings.device)
    path = Path(settings.out) / "training" / "teacher.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    return Distillation(
        Teacher(teacher, ScoreCache(str(path)), bf16=settings.precision == "bfloat16"),
        weight=settings.distillation_weight,
        kind=settings.distillation_loss,
        temperature=settings.distillation_temperature,
        candidates=settings.distillation_candidates,
    )


def _hard_negatives(settings: RunSettings, ranker: Ranker) -> list[Callback]:
    if not settings.hard_negatives:
        return []
    ranks = parse_ranks(settings.hard_negative_ranks)
    wanted = HardNegatives(settings.hard_negatives, *ranks, settings.hard_negative_margin)
    return [MinedNegatives(ranker, wanted, every=settings.hard_negatives_every, index=ranker.index)]


def _shown(settings: RunSettings, *, is_first: bool) -> list[Callback]:
    """What the first process shows: a line for whoever looks on, else one of the log now and then; and a curve."""
    if not is_first:
        return [Log(every_seconds=None)]
    out = Path(settings.out)
    curve = LearningCurve(out / CURVE, title=f"{out.name}: {settings.architecture} on {Path(settings.train).name}")
    if not ProgressLine.is_wanted():
        return [Log(), curve]
    return [Log(every_seconds=None), ProgressLine(handlers=logging.getLogger("polyencoder").handlers), curve]


def _of_the_run(settings: RunSettings) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in NOT_OF_THE_RUN}


def _write_card(ranker: Ranker, settings: RunSettings, best: KeepBest, *, evaluated: int) -> None:
    flags = {name: value for name, value in _of_the_run(settings).items() if value is not None}
    measures = {**main_measures(best.report or {}), "examples": evaluated}
    out = Path(settings.out)
    run = Run(
        flags,
        {"valid": measures},
        command="polyencoder train",
        updates=best.updates,
        examples=best.examples,
        seed=settings.seed,
    )
    write_text(out / README, model_card(ranker, name=out.resolve().name, run=run))


def _say(who: str, metrics: Mapping[str, float]) -> None:
    _log.info("%s: %s", who, "  ".join(f"{name} {value:.3f}" for name, value in main_measures(metrics).items()))
