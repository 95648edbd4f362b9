"""Callbacks of a training run, each optional."""

from __future__ import annotations

from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.baselines import Baselines
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.callbacks.log import Log
from polyencoder.training.callbacks.output_scaling import MeasuredScaling
from polyencoder.training.callbacks.progress import ProgressLine
from polyencoder.training.callbacks.record import Record
from polyencoder.training.callbacks.tracking import Tracking

__all__ = [
    "Baselines",
    "Callback",
    "Checkpoints",
    "Evaluation",
    "KeepBest",
    "LearningCurve",
    "Log",
    "MeasuredScaling",
    "MinedNegatives",
    "ProgressLine",
    "Record",
    "Run",
    "Tracking",
]
