"""The settings of heads that classify intents, and of their training."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Count, Needs, Positive, Share

HeadOptimizer = Literal["sgd", "adam"]

RATES: dict[HeadOptimizer, float] = {"adam": 4e-4, "sgd": 0.75}
"""Learning rates of the paper's Table 8."""


_OF_MLP = Needs("head", ("mlp",))


@settings(panel="The paper's head (head mlp)")
class HeadConfig(Settings):
    """The shape of a head; the values that ConveRT's paper tried are in its Table 8."""

    hidden_layers: Annotated[int, Field(ge=0, le=10)] = 1
    """Hidden layers of the head; 0 for a linear one."""
    hidden_size: Count = 512
    """Units of each hidden layer."""
    dropout: Share = 0.25
    """Dropout of the inputs of each hidden layer; a linear head has none."""

    def __str__(self) -> str:
        if not self.hidden_layers:
            return "no hidden layer"
        layers = "1 hidden layer" if self.hidden_layers == 1 else f"{self.hidden_layers} hidden layers"
        return f"{layers} of {self.hidden_size:,}, dropout {self.dropout}"


@settings(panel="The paper's head (head mlp)")
class FitSettings(Settings):
    """Training hyperparameters of a head; the defaults are those of Section 3 and Table 8 of ConveRT's paper."""

    optimizer: Annotated[HeadOptimizer, _OF_MLP] = "sgd"
    """sgd, or adam with a learning rate that decays to 0 over max_epochs."""
    learning_rate: Annotated[Positive | None, _OF_MLP] = None
    """The learning rate of the first epoch (default: the paper's, 0.75 for sgd and 4e-4 for adam)."""
    batch_size: Annotated[Count, _OF_MLP] = 32
    """Texts per batch."""
    patience: Annotated[Count, _OF_MLP] = 5
    """Stop after this many epochs without improvement on the held-out texts."""
    max_epochs: Annotated[Count, _OF_MLP] = 100
    """Maximum epochs."""
    held_out: Annotated[float, Field(gt=0, lt=1), Parameter(group="Data")] = 0.1
    """Share of each label's training texts to hold out."""

    @property
    def rate(self) -> float:
        """The learning rate of the first epoch."""
        return RATES[self.optimizer] if self.learning_rate is None else self.learning_rate
