"""The settings of `polyencoder evaluate`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from cyclopts import Parameter

from polyencoder.config import ContextVector
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import ColumnSettings, RankerSettings
from polyencoder.settings.fields import Count, Parlai

__all__ = ["EvaluateSettings"]


@settings()
class EvaluateSettings(Settings):
    """What is evaluated, and on what."""

    model: RankerSettings
    data: Annotated[str, Parameter(alias="-d")]
    """FILE or GLOB, comma-separated, or hf:NAME:SPLIT."""
    columns: ColumnSettings = field(default_factory=ColumnSettings)
    num_negatives: Count = 19
    """Candidates to sample for an example that has none."""
    negatives: str | None = None
    """FILE to sample them from (default: the responses of --data). With the training data and seed of polyencoder
    train, they are the ones of its own evaluations."""
    hits_at: Annotated[str, Parlai()] = "1,5,10"
    """Values of k for RN@k (R20@1: among 20 candidates) and hits@k, separated by commas."""
    seed: int = 0
    """Seed of sampled candidates."""
    extra_contexts: int | None = None
    """Multi-context convert models: how many turns before the last one are read."""
    context_vector: Annotated[ContextVector | None, Parlai()] = None
    """Multi-context convert models: rank with the combined (default), immediate or extra vector. With extra, examples
    without earlier turns are left out and counted."""
    baseline: Literal["tfidf"] | None = None
    """tfidf: also measure the keyword baseline, on the last turns, with word weights from the responses of
    --negatives."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print all metrics as one JSON object."""
