"""Builds the parts of a run from its `TrainingConfig`: objective and teacher, mined negatives, updates."""

from __future__ import annotations

import logging

from polyencoder.encoding.protocol import Learner
from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.trainable import TrainableModel, freeze
from polyencoder.ranker import Ranker
from polyencoder.settings.training import POINTWISE, TrainingConfig
from polyencoder.training.callbacks.base import Callback
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.distillation import Distillation, Teacher
from polyencoder.training.distributed import Processes
from polyencoder.training.losses import LABEL_LOSSES
from polyencoder.training.objective import CrossEntropy, LabelLoss, Loss, RankingObjective
from polyencoder.training.optimizer import build_optimizer
from polyencoder.training.precision import Precision
from polyencoder.training.progress import Goal
from polyencoder.training.schedule import Schedule
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.updates import OptimizerUpdates

_log = logging.getLogger(__name__)


def build_objective(learner: Learner, config: TrainingConfig) -> RankingObjective:
    """The loss of the labels and, with a teacher, distillation. CheckpointError, ConfigError: it cannot teach."""
    loss: Loss = CrossEntropy(config.label_smoothing)
    if config.objective != "softmax":
        loss = LabelLoss(LABEL_LOSSES[config.objective], pointwise=config.objective in POINTWISE)
    if config.distillation.has_teacher:
        loss = Distillation(_build_teacher(learner, config), config.distillation, labels=loss)
    return RankingObjective(
        learner.model,
        learner.text,
        loss=loss,
        gather_negatives=config.gather_negatives and config.candidates != "inline",
        grad_cache=config.grad_cache,
        pair_tokens=config.pair_tokens,
        dims=_select_dims(learner.model, config),
    )


def _build_teacher(learner: Learner, config: TrainingConfig) -> Teacher:
    """Builds the teacher. A ranker that cannot teach is an error before its file of scores is created."""
    name = config.distillation.teacher or ""
    ranker = Ranker.from_pretrained(name, device=learner.device)
    if ranker.model.has_foreign_candidates:
        raise ConfigError(
            f"{name}: no teacher, as it has no encoder of candidates, and scores those of one index alone",
            argument="teacher",
        )
    cache = ScoreCache(config.distillation.scores)
    return Teacher(ranker, cache, bf16=config.precision == "bfloat16", name=name, student=learner.text)


def _select_dims(model: RankerModel, config: TrainingConfig) -> tuple[int, ...]:
    """The numbers of first dimensions to train, each once."""
    if not config.matryoshka:
        return ()
    model.check_shortens(model.config)
    for dim in config.matryoshka:
        if not 1 <= dim < model.dim:
            raise ConfigError(
                f"matryoshka has {dim}; it must be at least 1 and below the {model.dim} dimensions of the model's "
                "vectors, which are always trained",
                argument="matryoshka",
            )
    return tuple(dict.fromkeys(config.matryoshka))


def build_mined_negatives(learner: Learner, config: TrainingConfig) -> list[Callback]:
    """The callback that mines hard negatives, by the model or a residual one's base. ConfigError: without vectors."""
    if not config.hard_negatives.count:
        return []
    miner = learner.model if learner.model.has_vectors else learner.model.base
    if miner is None:
        raise ConfigError(
            f"hard_negatives are mined by vectors, and a {learner.model.title} has none, unless it starts from a bi-, "
            "poly- or late-interaction encoder (residual): start from one, or leave it out",
            argument="hard_negatives",
        )
    ranker = Ranker(miner, learner.text, device=learner.device)
    return [MinedNegatives(ranker, config.hard_negatives)]


def build_updates(learner: Learner, config: TrainingConfig, *, goal: Goal, processes: Processes) -> OptimizerUpdates:
    """Builds the optimizer with schedule and precision, after layer freezing; raises as `make_updates` does."""
    precision = Precision(config.precision, learner.device, loss_scale=config.loss_scale)
    if precision.warning and processes.is_first:
        _log.warning("%s gains nothing here: %s", config.precision, precision.warning)
    freeze(learner.model, fine_tuned=config.fine_tuned, freeze_candidates=config.freeze_candidates)
    if config.lora.rank is not None:
        learner.model.add_adapters(**config.lora.options)
    total = goal.compute_total_updates(batch=config.batch_size * processes.count, accumulate=config.accumulate)
    return make_updates(learner.model, config, precision=precision, total=total, by_time=goal.seconds is not None)


def make_updates(
    model: TrainableModel, config: TrainingConfig, *, precision: Precision, total: int | None, by_time: bool
) -> OptimizerUpdates:
    """The optimizer and schedule of a model's trainable parameters. ConfigError as `Schedule`, or if there are none."""
    optimizer = build_optimizer(model, config.optimizer)
    return OptimizerUpdates(
        model,
        optimizer,
        Schedule(optimizer, config.schedule, total_updates=total, by_time=by_time),
        precision=precision,
        accumulate=config.accumulate,
        clip=config.clip or None,
        max_nonfinite=config.max_nonfinite,
    )
