"""Loads the models that a command's settings name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from polyencoder.errors import ConfigError, UsageError
from polyencoder.packages import is_installed, require
from polyencoder.settings.common import RankerOrBackbone, RankerSettings, RunningSettings

if TYPE_CHECKING:
    from polyencoder.ranker import Ranker


def load(settings: RankerSettings) -> Ranker:
    """Loads the model that the settings name."""
    return load_named(settings.model, settings)


def load_reranker(name: str | None, running: RankerSettings) -> Ranker | None:
    """Loads the cross-encoder for re-ranking, if one is named; it runs with torch where that is installed."""
    backend = "torch" if is_installed("torch") else running.backend
    return None if name is None else load_named(name, replace(running, backend=backend))


def load_named(name: str, running: RunningSettings) -> Ranker:
    """Loads a model by name."""
    from polyencoder.ranker import Ranker

    return Ranker.from_pretrained(name, device=running.device, backend=running.backend, dtype=running.model_dtype)


def load_encoder(settings: RankerOrBackbone) -> Ranker:
    """Loads the model that the settings name, or builds a one-tower bi-encoder around a pre-trained encoder."""
    backbone = settings.backbone
    if settings.model is not None:
        return load_named(settings.model, settings)
    if backbone is None:
        raise UsageError("give --model, a ranker, or --backbone, a pre-trained encoder")
    require("torch")
    from polyencoder.checkpoint import holds_ranker
    from polyencoder.ranker import Ranker

    if holds_ranker(backbone):
        raise ConfigError(f"--backbone {backbone} is a ranker, not a pre-trained encoder: give it as --model")
    return Ranker.from_backbone(backbone, share_encoders=True, device=settings.device)


def check_index(where: str | None) -> None:
    """Raises CheckpointError if there is no index at a given address: before a model is loaded for it."""
    from polyencoder.index.open import open_index

    if where is not None:
        open_index(where).close()


def check_reads_candidates(ranker: Ranker, *, instead: str, argument: str) -> None:
    """Raises ConfigError, which says what to do `instead`, for a model without an encoder of candidates."""
    if ranker.model.has_foreign_candidates:
        raise ConfigError(
            f"this model has no encoder of candidates, and searches an index of another encoder's vectors: {instead}",
            argument=argument,
        )


def describe_left_out(count: int) -> str | None:
    """A message on how many candidates were left out as turns of their contexts; None if none were."""
    if count == 0:
        return None
    return f"left out {count:,} candidates that are turns of their own contexts (--keep-turns keeps them)"
