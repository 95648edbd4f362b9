"""Training: `Trainer`, losses, optimizer, schedule, precision and callbacks, independent of ParlAI."""

from __future__ import annotations

from polyencoder.data.example import Example
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import (
    DistillationConfig,
    HardNegatives,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from polyencoder.training.run import RunReport, train_ranker
from polyencoder.training.trainer import Trainer

__all__ = [
    "DistillationConfig",
    "Example",
    "HardNegatives",
    "OptimizerConfig",
    "RunReport",
    "ScheduleConfig",
    "TrainSettings",
    "Trainer",
    "TrainingConfig",
    "train_ranker",
]
