"""Calibration: maps scores to probabilities, fitted to a model's scores of held-out examples."""

from __future__ import annotations

from polyencoder.calibration.probability import (
    DEPTH,
    CalibratedRanker,
    Calibration,
    FittedOn,
    LeastProbability,
    calibration_file,
    least_probability,
    read_calibration,
)

__all__ = [
    "DEPTH",
    "CalibratedRanker",
    "Calibration",
    "FittedOn",
    "LeastProbability",
    "calibration_file",
    "least_probability",
    "read_calibration",
]
