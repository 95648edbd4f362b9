"""Layer freezing: the four choices of Table 3 of the poly-encoder paper, and a frozen candidate side."""

from __future__ import annotations

from typing import get_args

from polyencoder.checks import check_choice
from polyencoder.config import FineTuned
from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel

FINE_TUNED = get_args(FineTuned)


def freeze(model: TrainableModel, *, fine_tuned: str, freeze_candidates: bool = False) -> None:
    """Freezes each backbone except the named part; a ranker's other weights are trained.

    Args:
        model: the model to train.
        fine_tuned: the part of each backbone to train.
        freeze_candidates: freeze all that a candidate's vector and token vectors depend on, and compute them as in
            inference, without dropout: an index of the initial model fits the trained one, stored tokens included.

    Raises:
        ConfigError: unknown part, weights loaded in low precision, or a model without a candidate side to freeze.
    """
    check_choice("fine_tuned", fine_tuned, FINE_TUNED)
    if reason := model.why_not_trainable():
        raise ConfigError(reason)
    for backbone in model.backbones:
        backbone.requires_grad_(fine_tuned == "all")
        if fine_tuned == "all":
            continue
        if fine_tuned == "all_encoder_layers":  # without layers there is a table alone, which is trained
            backbone.requires_grad_(True)
            backbone.embeddings().requires_grad_(not backbone.has_layers)
            continue
        layers = backbone.layers()
        for layer in list(layers)[-(1 if fine_tuned == "top_layer" else 4) :]:
            layer.requires_grad_(True)
    frozen = [*model.candidate_modules(), *model.token_modules()] if freeze_candidates else []
    if freeze_candidates and not frozen and not model.has_foreign_candidates:
        raise ConfigError("there are no vectors of candidates to keep", argument="freeze_candidates")
    frozen += model.never_trained
    for module in frozen:
        module.requires_grad_(False)
    model.inference_only = tuple(frozen)
