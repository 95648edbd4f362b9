"""Scores as probabilities (`probability`), fitted (`fitting`) to what a model says of examples (`observations`)."""

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
