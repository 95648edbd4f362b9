"""Losses of scores [batch, n], one value for each example; a score of -inf is padding, and masked.

`OF_LABELS` are those of labels as numbers [batch, n]; `teacher` has those of distillation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from polyencoder.training.losses.listwise import listnet, smoothed_cross_entropy, softmax_loss
from polyencoder.training.losses.pairwise import lambdaloss, ranknet
from polyencoder.training.losses.pointwise import bce, mse
from polyencoder.training.losses.teacher import distillation_kl, margin_mse

__all__ = [
    "OF_LABELS",
    "bce",
    "distillation_kl",
    "lambdaloss",
    "listnet",
    "margin_mse",
    "mse",
    "ranknet",
    "smoothed_cross_entropy",
    "softmax_loss",
]

OF_LABELS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"bce": bce, "mse": mse, "ranknet": ranknet, "listnet": listnet, "lambdaloss": lambdaloss}
)
"""The objectives besides the softmax, by their names in the settings."""
