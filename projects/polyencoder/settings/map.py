"""`MapSettings`: the settings of `polyencoder map`'s training."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from polyencoder.errors import ConfigError
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Count, NotNegative, Share, numbers

Numbers = Annotated[
    tuple[NotNegative, ...],
    BeforeValidator(numbers),
    Parameter(n_tokens=1, show_default=lambda values: ",".join(f"{one:g}" for one in values)),
]


@settings(panel="Training")
class MapSettings(Settings):
    """The settings of a map's training."""

    learning_rates: Numbers = (0.3, 0.1, 0.03, 0.01)
    """Learning rates to try, comma-separated."""
    regularizers: Numbers = (1.0, 0.1, 0.01, 0.0)
    """Strengths of L2 regularization to try, each with each learning rate."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Pairs per batch, whose other responses are the wrong ones."""
    patience: Count = 10
    """Epochs without improvement that end a try."""
    max_epochs: Count = 100
    """Maximum epochs of a try."""
    label_smoothing: Share = 0.2
    """Label smoothing: probability mass shared by the wrong responses."""
    seed: int = 0
    """Seed of the held-out pairs, the batches and the sampled candidates."""

    def __post_init__(self) -> None:
        for name in ("learning_rates", "regularizers"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; give one number or several", argument=name)
