"""The rankers: bi-encoder, poly-encoder, cross-encoder, ConveRT."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.convert import ConveRT
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.encoder_config import max_length
from polyencoder.modeling.families import family
from polyencoder.modeling.freezing import FINE_TUNED, freeze
from polyencoder.modeling.loading import build_backbone
from polyencoder.modeling.separable import BiEncoder, PolyEncoder, TwoTowers

__all__ = [
    "FINE_TUNED",
    "BiEncoder",
    "ConveRT",
    "CrossEncoder",
    "PolyEncoder",
    "RankerModel",
    "TwoTowers",
    "build_model",
    "check_lengths",
    "fitting",
    "freeze",
]

_log = logging.getLogger(__name__)


def check_lengths(config: RankerConfig) -> None:
    """Raise ConfigError where texts may be longer than the backbone takes."""
    longest = config.text.longest_context
    if config.architecture == "cross":
        longest += config.text.label_truncate
    limit = max_length(config.backbone)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"the backbone takes at most {limit} tokens, but sequences may have {longest}; "
            "give a smaller text_truncate or label_truncate",
            argument="text_truncate",
        )
    if limit is not None and config.text.label_truncate > limit:
        raise ConfigError(
            f"the backbone takes at most {limit} tokens, but candidates may have {config.text.label_truncate}; give a "
            "smaller label_truncate",
            argument="label_truncate",
        )


def fitting(
    text: TextConfig, backbone: Mapping[str, Any], architecture: Architecture, *, given: Collection[str]
) -> TextConfig:
    """Texts no longer than the backbone takes, as far as their lengths were not `given`; the log says so."""
    limit = max_length({**backbone})
    if limit is None or architecture == "convert":
        return text
    longest_label = (
        limit
        if architecture != "cross"
        else limit // 3
        if "text_truncate" not in given
        else (limit - text.longest_context)
    )
    fitted = text
    if "label_truncate" not in given and text.label_truncate > longest_label:
        fitted = replace(fitted, label_truncate=max(3, longest_label))
    room = limit - (fitted.label_truncate if architecture == "cross" else 0)
    if "text_truncate" not in given and text.longest_context > room:
        fitted = replace(fitted, text_truncate=max(3, text.text_truncate - (text.longest_context - room)))
    for name in ("text_truncate", "label_truncate"):
        if (value := getattr(fitted, name)) != getattr(text, name):
            _log.info("%s is %d, not %d: the encoder takes %d tokens", name, value, getattr(text, name), limit)
    return fitted


def build_model(config: RankerConfig, backbone: Backbone | None = None) -> RankerModel:
    """The ranker that `config` describes, around a pre-trained `backbone` or one with fresh weights.

    A ConveRT has no backbone.
    """
    own = family(config.architecture)
    if not own.has_backbone:
        return own.model(config)
    check_lengths(config)
    build: Any = own.model
    model: RankerModel = build(config, backbone or build_backbone(config.backbone))
    return model
