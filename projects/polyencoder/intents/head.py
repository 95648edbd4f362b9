"""The head: vectors of an encoder that stays as it is into logits of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyencoder.checks import check_fields
from polyencoder.errors import ConfigError

__all__ = ["Head", "HeadConfig"]

MOST_LAYERS = 10
LENGTH = 3.0


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head; the values that ConveRT's paper tried are in its Table 8.

    hidden_layers: 0 for a linear head. hidden_size: of each. dropout: of the inputs of each hidden layer; a linear head
    has none.
    """

    hidden_layers: int = 1
    hidden_size: int = 512
    dropout: float = 0.25

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.hidden_layers <= MOST_LAYERS:
            raise ConfigError(
                f"hidden_layers is {self.hidden_layers}; it must be 0 to {MOST_LAYERS}", argument="hidden_layers"
            )
        if self.hidden_size < 1:
            raise ConfigError(f"hidden_size is {self.hidden_size}; it must be at least 1", argument="hidden_size")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be at least 0 and below 1", argument="dropout")


class Head(nn.Module):
    """Hidden layers with ReLU and dropout before them, then a linear layer, as in PolyAI's published classifiers.

    Encoders' vectors are of any size, so they are standardised first: each dimension to mean 0, all of them to one
    deviation with which a vector's length is about `LENGTH`. The numbers for that are those of the training texts, and
    saved with the weights.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, config: HeadConfig, *, inputs: int, labels: int) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        layers: list[nn.Module] = []
        size = inputs
        for _ in range(config.hidden_layers):
            layers += [nn.Dropout(config.dropout), _linear(size, config.hidden_size), nn.ReLU()]
            size = config.hidden_size
        self.layers = nn.Sequential(*layers, _linear(size, labels))

    def standardise(self, vectors: Tensor) -> None:
        """Take the mean and deviation of these vectors [texts, inputs] for those of all."""
        deviation = vectors.std(0, unbiased=False)
        self.mean.copy_(vectors.mean(0))
        self.scale.copy_(torch.where(deviation > 0, LENGTH / vectors.size(1) ** 0.5 / deviation, 0))

    def forward(self, vectors: Tensor) -> Tensor:
        """[texts, inputs] -> [texts, labels]."""
        logits: Tensor = self.layers(self.standardised(vectors))
        return logits

    def standardised(self, vectors: Tensor) -> Tensor:
        """What the layers read of vectors."""
        return (vectors - self.mean) * self.scale

    def take_weights(self, model: Any) -> None:
        """Take the weights of a logistic regression by scikit-learn; the head is a linear one."""
        (layer,) = self.layers
        weights, biases = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
        if len(weights) < len(model.classes_):  # of two labels it has the difference
            weights = torch.cat([torch.zeros_like(weights), weights])
            biases = torch.cat([torch.zeros_like(biases), biases])
        with torch.no_grad():
            layer.weight.copy_(weights)  # type: ignore[operator]
            layer.bias.copy_(biases)  # type: ignore[operator]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
