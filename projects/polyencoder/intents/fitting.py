"""Trains a head on vectors: logistic regression, or the paper's perceptron with early stopping on held-out texts."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.checks import check_fields
from polyencoder.errors import ConfigError, InputError
from polyencoder.intents.head import Head, HeadConfig

__all__ = ["FitSettings", "Fitted", "HeadOptimizer", "best_logistic", "fit_head", "fit_logistic"]

HeadOptimizer = Literal["sgd", "adam"]

RATES: dict[str, float] = {"sgd": 0.75, "adam": 4e-4}
"""Learning rates of the paper's Table 8."""
STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of logistic regression's L2 regularization, of which what is held out chooses."""
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class FitSettings:
    """How a head is trained; the defaults are those of Section 3 and Table 8 of ConveRT's paper.

    held_out: the share of texts that choose. The others are the perceptron's: optimizer: "sgd", or "adam", whose rate
    falls to 0 over `max_epochs`. learning_rate: None for the paper's, 0.75 and 4e-4. patience: so many epochs without
    an improvement of what is held out end it.
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
    """A trained head, and how well it does on what was held out."""

    head: Head
    accuracy: float
    loss: float
    epochs: int
    """Those that it was trained for, up to its best; of logistic regression the iterations."""
    temperature: float
    """What its logits are divided by, so that its probabilities are those of being right."""


def best_logistic(vectors: Any, labels: Any, valid_vectors: Any, valid_labels: Any, *, tolerance: float = 1e-4) -> Any:
    """scikit-learn's logistic regression, with the regularization that is most accurate on what is held out."""
    from sklearn.linear_model import LogisticRegression  # takes a second to import

    fitted = [LogisticRegression(C=c, max_iter=1_000, tol=tolerance).fit(vectors, labels) for c in STRENGTHS]
    return max(fitted, key=lambda model: model.score(valid_vectors, valid_labels))


def fit_logistic(
    vectors: Tensor, labels: Tensor, valid_vectors: Tensor, valid_labels: Tensor, *, n_labels: int
) -> Fitted:
    """A linear head by logistic regression, and the temperature that makes the held-out labels most likely.

    Once its regularization is chosen it is trained on all of the texts, those held out too.

    Args:
        vectors: [texts, dim], float32, to train on.
        labels: [texts], 0 to `n_labels` - 1, each of which is there.
        valid_vectors, valid_labels: the same of what is held out.
        n_labels: how many there are.
    """
    head = Head(HeadConfig(hidden_layers=0), inputs=vectors.size(1), labels=n_labels)
    head.standardise(torch.cat([vectors, valid_vectors]))
    rows, valid = (head.standardised(some).numpy() for some in (vectors, valid_vectors))
    model = best_logistic(rows, labels.numpy(), valid, valid_labels.numpy(), tolerance=1e-3)
    head.take_weights(model)
    found = _score(head, valid_vectors, valid_labels)
    with torch.inference_mode():
        temperature = best_temperature(head.eval()(valid_vectors), valid_labels)
    model.fit(np.concatenate([rows, valid]), torch.cat([labels, valid_labels]).numpy())
    head.take_weights(model)
    return Fitted(head, found.accuracy, found.loss, int(model.n_iter_.max()), temperature)


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
    """The paper's head, of the epoch with the lowest loss on what is held out; the accuracy of few texts says less.

    An epoch is an improvement where accuracy or loss has never been as good.

    Args:
        vectors: [texts, dim], float32, to train on.
        labels: [texts], 0 to `n_labels` - 1.
        valid_vectors, valid_labels: the same of what is held out.
        n_labels: how many there are.
        config: the head's shape.
        settings: how it is trained.
        seed: of the first weights, the order of texts, and dropout. torch's global random state is left alone.

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
        kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.Adam
        optimizer = kind(head.parameters(), lr=settings.rate)
        for epoch in range(settings.max_epochs):
            if settings.optimizer == "adam":
                for group in optimizer.param_groups:
                    group["lr"] = settings.rate * (1 - epoch / settings.max_epochs)
            _train_epoch(head, optimizer, vectors, labels, batch_size=settings.batch_size)
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


def _train_epoch(
    head: Head, optimizer: torch.optim.Optimizer, vectors: Tensor, labels: Tensor, *, batch_size: int
) -> None:
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
    """The divisor of logits that makes labels most likely: temperature scaling (Guo et al., ICML 2017)."""
    from scipy.optimize import minimize_scalar

    def loss(log_inverse: float) -> float:
        return float(F.cross_entropy(logits.double() * math.exp(log_inverse), labels))

    low, high = (math.log(1 / one) for one in reversed(_TEMPERATURES))
    return math.exp(-minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-9}).x)
