"""The ranker that a run begins with, and the untrained one that its result is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyencoder.errors import ConfigError
from polyencoder.modeling.compiling import compile_encoders
from polyencoder.modeling.convert.config import parse_sizes
from polyencoder.modeling.families import CONVERT_SIZES, family
from polyencoder.modeling.pretrained_heads import begins_with_head
from polyencoder.ranker.ranker import Ranker
from polyencoder.text import TextEncoder
from polyencoder.training.settings import OF_A_NEW_RANKER, RunSettings

__all__ = ["starting_ranker", "untrained_ranker"]


def starting_ranker(settings: RunSettings) -> Ranker:
    """The ranker that learns: the one that is gone on with, or a new one around the backbone.

    Raises:
        ConfigError: it is of another architecture, or the settings do not suit it.
    """
    ranker = _initial(settings) if settings.init else _new(settings)
    if settings.output_scaling == "auto" and ranker.model.config.normalize:
        raise ConfigError(
            "output_scaling 'auto': vectors have the length 1 (normalize), whatever outputs are; give a number",
            argument="output_scaling",
        )
    if settings.compile:
        compile_encoders(ranker.model, device=ranker.device)
    return ranker


def untrained_ranker(settings: RunSettings) -> Ranker:
    """What the run starts from, as it ranks before training.

    A new poly- or cross-encoder is random in part, so in its place stand the backbone's own vectors: a bi-encoder. Not
    so where a cross-encoder begins with a pre-trained head for next utterances. A new ConveRT is all random.
    """
    own = family(settings.architecture)
    if settings.init or not own.has_backbone:
        return starting_ranker(settings)
    assert settings.backbone is not None
    if not own.model.has_vectors:
        ranker = _around_backbone(settings, settings.architecture)
        if begins_with_head(ranker.model, settings.backbone):
            return ranker
    return _around_backbone(settings, "bi")


def _new(settings: RunSettings) -> Ranker:
    if not family(settings.architecture).has_backbone:
        return _over_vocabulary(settings)
    return _around_backbone(settings, settings.architecture)


def _initial(settings: RunSettings) -> Ranker:
    assert settings.init is not None
    ranker = Ranker.from_pretrained(settings.init, device=settings.device)
    config = ranker.model.config
    if config.architecture != settings.architecture:
        has_backbone = all(family(name).has_backbone for name in (config.architecture, settings.architecture))
        raise ConfigError(
            f"{settings.init} is of the architecture {config.architecture}, not {settings.architecture}: give its own"
            + (", or start a new model from its encoder with backbone instead of init" if has_backbone else ""),
            argument="architecture",
        )
    config = replace(config, text=replace(config.text, **_lengths(settings)))
    if isinstance(settings.output_scaling, float):
        config = replace(config, output_scaling=settings.output_scaling)
    ranker.model.check_config(config)
    ranker.model.config = config
    own = {name: getattr(settings, name) for name in family(settings.architecture).settings}
    ranker.model.continue_with(own, origin=settings.init)
    # without the calibration, which is of other weights than those that will be learnt
    return Ranker(ranker.model, TextEncoder(ranker.text.tokenizer, config.text), device=settings.device)


def _around_backbone(settings: RunSettings, architecture: Any) -> Ranker:
    assert settings.backbone is not None
    given: dict[str, Any] = {name: value for name in OF_A_NEW_RANKER if (value := getattr(settings, name)) is not None}
    if isinstance(settings.output_scaling, float):
        given["output_scaling"] = settings.output_scaling
    return Ranker.from_backbone(
        settings.backbone, architecture, device=settings.device, text=_lengths(settings), **given
    )


def _over_vocabulary(settings: RunSettings) -> Ranker:
    assert settings.vocabulary is not None
    given = {name: value for name in (*CONVERT_SIZES, "dropout") if (value := getattr(settings, name)) is not None}
    sizes = parse_sizes(given)
    if settings.quantization_aware:
        sizes["quantized"] = True
        if settings.quantization_update is not None:
            sizes["quantization_update"] = settings.quantization_update
    return Ranker.from_vocabulary(
        settings.vocabulary,
        device=settings.device,
        extra_contexts=settings.extra_contexts or 0,
        text=_lengths(settings),
        **sizes,
    )


def _lengths(settings: RunSettings) -> dict[str, Any]:
    """The fields of the text's configuration that were given."""
    names = ("text_truncate", "label_truncate", "history_size", "number_turns")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return given if settings.extra_contexts is None else given | {"history_size": 1 + settings.extra_contexts}
