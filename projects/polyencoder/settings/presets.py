"""`--preset`: named sets of settings to start with; a setting that is given takes precedence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

OF_ANY = ("text_truncate", "label_truncate", "epochs")
"""The settings that a preset sets for a cross-encoder, too, whose batches are of another kind."""
PresetName = Literal["fast", "balanced", "accurate"]

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "fast": {"architecture": "bi", "text_truncate": 64, "label_truncate": 32, "batch_size": 64, "epochs": 1.0},
        "balanced": {
            "architecture": "poly",
            "text_truncate": 128,
            "label_truncate": 48,
            "batch_size": 64,
            "epochs": 2.0,
        },
        "accurate": {"architecture": "late", "text_truncate": 256, "batch_size": 64, "grad_cache": 32},
    }
)
"""The settings of each preset, by flat name; those of `accurate` that are missing are the usual ones."""
