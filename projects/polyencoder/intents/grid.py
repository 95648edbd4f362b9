"""Which head and which optimizer: those that do best on what is held out, of those that the paper tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from polyencoder.intents.fitting import FitSettings, Fitted, HeadOptimizer
from polyencoder.intents.head import HeadConfig

__all__ = ["TABLE_8", "Tried", "grid_search", "shape"]

_OPTIMIZERS: tuple[HeadOptimizer, ...] = ("adam", "sgd")

TABLE_8: tuple[tuple[HeadConfig, HeadOptimizer], ...] = tuple(
    (HeadConfig(layers, size, dropout), optimizer)
    for optimizer in _OPTIMIZERS
    for layers, size, dropout in [
        (0, 128, 0.0),  # neither size nor dropout play a part
        *((layers, size, rate) for layers in (1, 2) for size in (128, 256, 512, 1_024) for rate in (0.75, 0.5, 0.25)),
    ]
)
"""Table 8 of ConveRT's paper: hidden layers, their size, dropout and optimizer; 50 different ones."""


def shape(config: HeadConfig) -> str:
    """A head in words."""
    if not config.hidden_layers:
        return "no hidden layer"
    layers = "1 hidden layer" if config.hidden_layers == 1 else f"{config.hidden_layers} hidden layers"
    return f"{layers} of {config.hidden_size:,}, dropout {config.dropout}"


class Tried(NamedTuple):
    """One of a grid, and how well it did on what was held out."""

    config: HeadConfig
    settings: FitSettings
    accuracy: float
    loss: float


def grid_search(
    fit: Callable[[HeadConfig, FitSettings], Fitted],
    settings: FitSettings,
    *,
    grid: Sequence[tuple[HeadConfig, HeadOptimizer]] = TABLE_8,
    said: Callable[[str], object] | None = None,
) -> list[Tried]:
    """All of a grid, best first: by accuracy on what is held out, then by the loss. Optimizers have the paper's rates.

    Args:
        fit: what is to be done with each.
        settings: all but the optimizer and its rate.
        grid: shapes and optimizers.
        said: told in a line of each that is done.
    """
    tried = []
    for number, (config, optimizer) in enumerate(grid, start=1):
        own = replace(settings, optimizer=optimizer, learning_rate=None)
        fitted = fit(config, own)
        tried.append(Tried(config, own, fitted.accuracy, fitted.loss))
        if said is not None:
            said(f"{number} of {len(grid)}: {shape(config)}, {optimizer}: held out {fitted.accuracy:.1%}")
    return sorted(tried, key=lambda one: (-one.accuracy, one.loss))
