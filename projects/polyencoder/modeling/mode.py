"""Evaluation mode as a context manager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Switches a model to evaluation mode; afterwards each module's mode is restored."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
