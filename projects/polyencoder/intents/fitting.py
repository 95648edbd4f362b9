"""A head learns: batches of vectors, cross-entropy, and an end where what is held out gets no better."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.checks import check_fields
from polyencoder.errors import ConfigError, InputError
from polyencoder.intents.head import Head, HeadConfig

__all__ = ["FitSettings", "Fitted", "HeadOptimizer", "fit_head"]

HeadOptimizer = Literal["sgd", "adam"]

RATES: dict[str, float] = {"sgd": 0.75, "adam": 4e-4}
"""Learning rates of the paper's Table 8."""

_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class FitSettings:
    """How a head learns; the defaults are those of Section 3 and Table 8 of ConveRT's paper.

    optimizer: "sgd", or "adam", whose rate falls to 0 over `max_epochs`. learning_rate: None for the paper's, 0.75 and
    4e-4. patience: so many epochs without an improvement of what is held out end it. held_out: its share.
    """

    optimizer: HeadOptimizer = "sgd"
    learning_rate: float | None = None
    batch_size: int = 32
    patience: int = 5
    max_epochs: int = 100
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("batch_size", "patience", "max_epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1", argument=name)
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; it must be between 0 and 1", argument="held_out")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}; it must be above 0", argument="learning_rate")

    @property
    def rate(self) -> float:
        """The learning rate of the first epoch."""
        return RATES[self.optimizer] if self.learning_rate is None else self.learning_rate


class Fitted(NamedTuple):
    """A head that has learnt, and how well it does on what was held out."""

    head: Head
    accuracy: float
    loss: float
    epochs: int
    """Those that it learnt for, up to its best."""
    temperature: float
    """What its logits are divided by, so that its probabilities are those of being right."""


class _Score(NamedTuple):
    accuracy: float
    loss: float


def fit_head(
    vectors: Tensor,
    labels: Tensor,
    valid_vectors: Tensor,
    valid_labels: Tensor,
    *,
    n_labels: int,
    config: HeadConfig | None = None,
    settings: FitSettings | None = None,
    seed: int = 0,
) -> Fitted:
    """The head of the epoch with the lowest loss on what is held out; the accuracy of few texts says less.

    An epoch is an improvement where accuracy or loss has never been as good.

    Args:
        vectors: [texts, dim], float32, to learn from.
        labels: [texts], 0 to `n_labels` - 1.
        valid_vectors, valid_labels: the same of what is held out.
        n_labels: how many there are.
        config: the head's shape.
        settings: how it learns.
        seed: of the first weights, the order of texts, and dropout. The global state of torch stays as it is.

    Raises:
        InputError: the losses are no numbers.
    """
    config, settings = config or HeadConfig(), settings or FitSettings()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(config, inputs=vectors.size(1), labels=n_labels)
        head.standardise(vectors)
        best, waited, done = _score(head, valid_vectors, valid_labels), 0, 0
        accuracy = best.accuracy  # the best, of any epoch
        found = copy.deepcopy(head.state_dict())
        optimizer = _optimizer(head, settings)
        for epoch in range(settings.max_epochs):
            if settings.optimizer == "adam":
                for group in optimizer.param_groups:
                    group["lr"] = settings.rate * (1 - epoch / settings.max_epochs)
            _learn(head, optimizer, vectors, labels, batch_size=settings.batch_size)
            reached = _score(head, valid_vectors, valid_labels)
            if not math.isfinite(reached.loss):
                raise InputError(
                    f"the losses are no numbers after {epoch + 1} epochs: give a lower learning rate",
                    argument="learning_rate",
                )
            improved = reached.accuracy > accuracy or reached.loss < best.loss
            waited, accuracy = 0 if improved else waited + 1, max(accuracy, reached.accuracy)
            if reached.loss < best.loss:
                best, done, found = reached, epoch + 1, copy.deepcopy(head.state_dict())
            if waited == settings.patience:
                break
    head.load_state_dict(found)
    with torch.inference_mode():
        temperature = best_temperature(head.eval()(valid_vectors), valid_labels)
    return Fitted(head, best.accuracy, best.loss, done, temperature)


def _optimizer(head: Head, settings: FitSettings) -> torch.optim.Optimizer:
    kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.Adam
    return kind(head.parameters(), lr=settings.rate)


def _learn(head: Head, optimizer: torch.optim.Optimizer, vectors: Tensor, labels: Tensor, *, batch_size: int) -> None:
    """One epoch."""
    head.train()
    for rows in torch.randperm(len(vectors)).split(batch_size):
        loss = F.cross_entropy(head(vectors[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def _score(head: Head, vectors: Tensor, labels: Tensor) -> _Score:
    logits = head.eval()(vectors)
    return _Score(float((logits.argmax(1) == labels).float().mean()), float(F.cross_entropy(logits, labels)))


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The divisor of logits that makes labels most likely: temperature scaling (Guo et al., ICML 2017).

    The loss is convex in the divisor's inverse, so a search by thirds finds it.
    """

    def loss(inverse: float) -> float:
        return float(F.cross_entropy(logits.double() * inverse, labels))

    low, high = (math.log(1 / one) for one in reversed(_TEMPERATURES))
    for _ in range(60):
        third = (high - low) / 3
        if loss(math.exp(low + third)) < loss(math.exp(high - third)):
            high -= third
        else:
            low += third
    return math.exp(-(low + high) / 2)
