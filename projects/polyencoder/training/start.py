"""The ranker that a run begins with, and the untrained one that its result is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyencoder.errors import ConfigError
from polyencoder.modeling import check_lengths
from polyencoder.modeling.compiling import compile_encoders
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from polyencoder.training.settings import RunSettings

__all__ = ["starting_ranker", "untrained_ranker"]


def starting_ranker(settings: RunSettings) -> Ranker:
    """The ranker that learns: the one that is gone on with, or a new one around the backbone.

    Raises:
        ConfigError: it is of another architecture, or the settings do not suit it.
    """
    ranker = _initial(settings) if settings.init else _around_backbone(settings, settings.architecture)
    if settings.output_scaling == "auto" and ranker.model.config.normalize:
        raise ConfigError(
            "output_scaling 'auto': vectors have the length 1 (normalize), whatever outputs are; give a number"
        )
    if settings.compile:
        compile_encoders(ranker.model, device=ranker.device)
    return ranker


def untrained_ranker(settings: RunSettings) -> Ranker:
    """What the run starts from, as it ranks before training.

    A new poly- or cross-encoder is random in part, so in its place stand the backbone's own vectors: a bi-encoder.
    """
    return _initial(settings) if settings.init else _around_backbone(settings, "bi")


def _initial(settings: RunSettings) -> Ranker:
    assert settings.init is not None
    ranker = Ranker.from_pretrained(settings.init, device=settings.device)
    config = ranker.model.config
    if config.architecture != settings.architecture:
        raise ConfigError(
            f"{settings.init} is a {config.architecture}-encoder, not {settings.architecture}: give its architecture"
        )
    config = replace(config, text=replace(config.text, **_lengths(settings)))
    if isinstance(settings.output_scaling, float):
        config = replace(config, output_scaling=settings.output_scaling)
    if settings.architecture != "convert":  # which has no positions to run out of
        check_lengths(config)
    ranker.model.config = config
    # without the calibration, which is of other weights than those that will be learnt
    return Ranker(ranker.model, TextEncoder(ranker.text.tokenizer, config.text), device=settings.device)


def _around_backbone(settings: RunSettings, architecture: Any) -> Ranker:
    assert settings.backbone is not None
    names = ("n_codes", "reduction", "normalize", "share_encoders")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if isinstance(settings.output_scaling, float):
        given["output_scaling"] = settings.output_scaling
    return Ranker.from_backbone(
        settings.backbone, architecture, device=settings.device, text=_lengths(settings), **given
    )


def _lengths(settings: RunSettings) -> dict[str, Any]:
    """The fields of the text's configuration that were given."""
    names = ("text_truncate", "label_truncate", "history_size")
    return {name: value for name in names if (value := getattr(settings, name)) is not None}
