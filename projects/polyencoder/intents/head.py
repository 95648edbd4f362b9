"""The classification head: maps a frozen encoder's vectors to logits of labels."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.settings.intents import HeadConfig

LENGTH = 3.0
_TEMPERATURES = (0.05, 20.0)


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
        sizes = [inputs, *[config.hidden_size] * config.hidden_layers]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Dropout(config.dropout), _linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, _linear(sizes[-1], labels))

    def standardise(self, vectors: Tensor) -> None:
        """Sets mean and deviation to those of these vectors [texts, inputs]."""
        deviation = vectors.std(0, unbiased=False)
        self.mean.copy_(vectors.mean(0))
        self.scale.copy_(torch.where(deviation > 0, LENGTH / vectors.size(1) ** 0.5 / deviation, 0))

    def forward(self, vectors: Tensor) -> Tensor:
        """[texts, inputs] -> [texts, labels]."""
        logits: Tensor = self.layers(self.standardised(vectors))
        return logits

    def standardised(self, vectors: Tensor) -> Tensor:
        """The input of the first layer, [texts, inputs]."""
        return (vectors - self.mean) * self.scale

    def copy_logistic(self, model: Any) -> None:
        """Copies the weights of scikit-learn's logistic regression into a linear head."""
        (layer,) = self.layers
        weights, biases = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
        if len(weights) < len(model.classes_):  # of two labels it has the difference
            weights, biases = (torch.cat([torch.zeros_like(one), one]) for one in (weights, biases))
        with torch.no_grad():
            layer.weight.copy_(weights)  # type: ignore[operator]
            layer.bias.copy_(biases)  # type: ignore[operator]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class HeadScore(NamedTuple):
    """Accuracy and loss of a head on labelled vectors."""

    accuracy: float
    loss: float


class TrainedHead(NamedTuple):
    """A trained head and its score on the held-out texts."""

    head: Head
    valid: HeadScore
    epochs: int
    """Epochs up to the best one; for logistic regression, iterations."""
    temperature: float
    """The divisor of its logits that makes the held-out labels most likely."""


@torch.inference_mode()
def score(head: Head, vectors: Tensor, labels: Tensor) -> HeadScore:
    """Evaluates a head on vectors [texts, inputs] with labels [texts]."""
    logits = head.eval()(vectors)
    return HeadScore(float((logits.argmax(1) == labels).float().mean()), float(F.cross_entropy(logits, labels)))


@torch.inference_mode()
def best_temperature(head: Head, vectors: Tensor, labels: Tensor) -> float:
    """Fits the temperature of a head's logits by maximum likelihood (Guo et al., ICML 2017)."""
    from scipy.optimize import minimize_scalar  # takes a while to import

    logits = head.eval()(vectors).double()

    def loss(log_inverse: float) -> float:
        return float(F.cross_entropy(logits * math.exp(log_inverse), labels))

    low, high = (math.log(1 / one) for one in reversed(_TEMPERATURES))
    return math.exp(-minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-9}).x)
