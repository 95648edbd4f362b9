"""The settings of a whole run, from its data to its folder: what flags and a YAML file of `polyencoder train` say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from polyencoder.config import Architecture
from polyencoder.errors import ConfigError
from polyencoder.training.config import TrainingConfig
from polyencoder.training.distillation import Kind
from polyencoder.training.optimizer import OptimizerConfig, OptimizerName
from polyencoder.training.precision import PrecisionName
from polyencoder.training.schedule import ScheduleConfig, ScheduleName

__all__ = ["RunSettings"]


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run is made of, flat, as flags and a YAML file have it.

    Either `backbone`, a pre-trained encoder, or `init`, a ranker to go on training. None stands for what suits the
    model: of a sentence encoder its own pooling and the cosine, else the paper's.
    """

    train: str = ""
    out: str = ""
    valid: str | None = None
    backbone: str | None = None
    init: str | None = None
    architecture: Architecture = "poly"
    context: str = "context"
    response: str = "response"
    column_candidates: str = "candidates"
    n_codes: int = 64
    reduction: str | None = None
    normalize: bool | None = None
    output_scaling: float | None = None
    share_encoders: bool = False
    text_truncate: int = 360
    label_truncate: int = 72
    history_size: int = 20
    candidates: str | None = None
    """Where a training example's candidates come from: "batch", or for a cross-encoder "inline"."""
    num_negatives: int = 19
    """Candidates that are drawn from the training responses for an example that has none, where it needs some."""
    epochs: float | None = 3.0
    max_updates: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    learning_rate: float = 5e-5
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.01
    schedule: ScheduleName = "linear"
    warmup_updates: int | None = None
    precision: PrecisionName = "float32"
    fine_tuned: str = "all_encoder_layers"
    accumulate: int = 1
    clip: float = 1.0
    grad_cache: int = 0
    pair_tokens: int = 0
    gather_negatives: bool = True
    evaluations: float = 2.0
    """Evaluations in an epoch."""
    patience: int | None = 4
    """Evaluations in a row without a better one that end the run."""
    teacher: str | None = None
    distillation_weight: float = 0.5
    distillation_loss: Kind = "kl"
    distillation_temperature: float = 1.0
    distillation_candidates: int = 0
    hard_negatives: int = 0
    hard_negatives_every: int = 500
    hard_negative_ranks: str = "1-100"
    hard_negative_margin: float | None = None
    max_nonfinite: int = 5
    save_every_seconds: float | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.train or not self.out:
            raise ConfigError("a run needs its training data (train) and a folder for the model (out)")
        if bool(self.backbone) == bool(self.init):
            raise ConfigError("give one of backbone, an encoder to start from, and init, a ranker to go on training")
        if self.hard_negatives and self.source != "batch":
            raise ConfigError("hard_negatives join the candidates 'batch'; `polyencoder mine` writes inline ones")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, origin: str) -> RunSettings:
        """The settings that a YAML file or the command line names; ConfigError for one that is unknown."""
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(f"{origin}: unknown setting {unknown[0]!r}{_meant(unknown[0], known)}")
        return cls(**values)

    @property
    def source(self) -> str:
        return self.candidates or ("inline" if self.architecture == "cross" else "batch")

    def training(self) -> TrainingConfig:
        """The trainer's part of the settings."""
        return TrainingConfig(
            epochs=self.epochs,
            max_updates=self.max_updates,
            max_seconds=self.max_seconds,
            batch_size=self.batch_size or (8 if self.architecture == "cross" else 32),
            candidates=self.source,
            gather_negatives=self.gather_negatives,
            optimizer=OptimizerConfig(self.optimizer, self.learning_rate, self.weight_decay),
            schedule=ScheduleConfig(self.schedule, self.warmup_updates),
            precision=self.precision,
            fine_tuned=self.fine_tuned,
            accumulate=self.accumulate,
            clip=self.clip or None,
            grad_cache=self.grad_cache,
            pair_tokens=self.pair_tokens,
            max_nonfinite=self.max_nonfinite,
            seed=self.seed,
        )


def _meant(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
