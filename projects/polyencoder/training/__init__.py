"""Training: the `Trainer`, its losses, optimizer, schedule, precision and callbacks. Nothing of it knows ParlAI."""

from __future__ import annotations

from polyencoder.data.example import Example
from polyencoder.training.config import TrainingConfig
from polyencoder.training.distillation import DistillationConfig
from polyencoder.training.hard_negatives import HardNegatives
from polyencoder.training.optimizer import OptimizerConfig
from polyencoder.training.run import RunReport, train_ranker
from polyencoder.training.schedule import ScheduleConfig
from polyencoder.training.settings import RunSettings
from polyencoder.training.trainer import Trainer

__all__ = [
    "DistillationConfig",
    "Example",
    "HardNegatives",
    "OptimizerConfig",
    "RunReport",
    "RunSettings",
    "ScheduleConfig",
    "Trainer",
    "TrainingConfig",
    "train_ranker",
]
