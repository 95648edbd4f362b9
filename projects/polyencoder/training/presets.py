"""Default hyperparameters by architecture, where a setting is not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["preset"]

# around a pre-trained encoder: Section 5.1 of Humeau et al. (ICLR 2020)
_USUAL = {"learning_rate": 5e-5, "optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "clip": 1.0}
# Section 3 of ConveRT, and note 10
_CONVERT = {
    "learning_rate": 1.0,
    "final_learning_rate": 0.001,
    "optimizer": "adadelta",
    "weight_decay": 1e-5,
    "schedule": "cosine",
    "warmup_updates": 0,
    "clip": 0.0,
    "embedding_clip": 1.0,
    "label_smoothing": 0.2,
    "batch_size": 512,
}
# the same, on a task: "for 60K training steps"
_CONVERT_FINE_TUNED = _CONVERT | {
    "learning_rate": 0.1,
    "final_learning_rate": 0.0001,
    "batch_size": 256,
    "dropout": 0.2,
    "max_updates": 60_000,
}


def preset(architecture: str, *, fine_tuning: bool) -> Mapping[str, Any]:
    """What the settings of a run are that starts anew, or from a ranker that was trained (`fine_tuning`)."""
    if architecture != "convert":
        return _USUAL
    return _CONVERT_FINE_TUNED if fine_tuning else _CONVERT
