"""Calibration: maps scores to probabilities, fitted to a model's scores of held-out examples."""

from __future__ import annotations

from polyencoder.calibration.answering import AnswerOptions
from polyencoder.calibration.probability import (
    DEPTH,
    CalibratedRanker,
    Calibration,
    FitData,
    calibration_file,
    read_calibration,
)

__all__ = [
    "DEPTH",
    "AnswerOptions",
    "CalibratedRanker",
    "Calibration",
    "FitData",
    "calibration_file",
    "read_calibration",
]
