"""The rankers: bi-encoder, poly-encoder, cross-encoder, ConveRT."""

from __future__ import annotations

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.convert import ConveRT
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.encoder_config import max_length
from polyencoder.modeling.freezing import FINE_TUNED, freeze
from polyencoder.modeling.loading import build_backbone
from polyencoder.modeling.separable import BiEncoder, PolyEncoder, SeparableRanker, TwoTowers

__all__ = [
    "FINE_TUNED",
    "BiEncoder",
    "ConveRT",
    "CrossEncoder",
    "PolyEncoder",
    "RankerModel",
    "SeparableRanker",
    "TwoTowers",
    "build_model",
    "check_lengths",
    "freeze",
]

RankerModel = SeparableRanker | CrossEncoder

_MODELS: dict[str, type[BiEncoder] | type[PolyEncoder] | type[CrossEncoder]] = {
    "bi": BiEncoder,
    "poly": PolyEncoder,
    "cross": CrossEncoder,
}


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


def build_model(config: RankerConfig, backbone: Backbone | None = None) -> RankerModel:
    """The ranker that `config` describes, around a pre-trained `backbone` or one with fresh weights.

    A ConveRT has no backbone.
    """
    if config.architecture == "convert":
        return ConveRT(config)
    check_lengths(config)
    return _MODELS[config.architecture](config, backbone or build_backbone(config.backbone))
