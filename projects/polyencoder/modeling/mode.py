"""Evaluation mode for as long as something is computed in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_evaluation"]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Have all of a model in evaluation mode; afterwards each part is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
