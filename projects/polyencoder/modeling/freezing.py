"""Layer freezing: the four choices of Table 3 of the poly-encoder paper."""

from __future__ import annotations

from typing import get_args

from polyencoder.config import FineTuned
from polyencoder.errors import ConfigError
from polyencoder.modeling.base import TrainableModel

FINE_TUNED = get_args(FineTuned)


def freeze(model: TrainableModel, *, fine_tuned: str) -> None:
    """Freezes each backbone except the named part; what a ranker adds to its backbones is always trained.

    Raises:
        ConfigError: unknown part, or weights loaded in low precision.
    """
    if fine_tuned not in FINE_TUNED:
        raise ConfigError(
            f"fine_tuned is {fine_tuned!r}; it must be one of {', '.join(FINE_TUNED)}", argument="fine_tuned"
        )
    if reason := model.why_not_trainable():
        raise ConfigError(reason)
    for backbone in model.backbones:
        backbone.requires_grad_(fine_tuned == "all")
        if fine_tuned == "all":
            continue
        if fine_tuned == "all_encoder_layers":
            backbone.requires_grad_(True)
            backbone.embeddings().requires_grad_(False)
            continue
        layers = backbone.layers()
        for layer in list(layers)[-(1 if fine_tuned == "top_layer" else 4) :]:
            layer.requires_grad_(True)
