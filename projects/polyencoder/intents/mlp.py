"""The head of ConveRT's paper: a perceptron with dropout, early stopping, and the grid of its Table 8."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.intents.head import Head, TrainedHead, best_temperature, score
from polyencoder.settings.intents import RATES, FitSettings, HeadConfig, HeadOptimizer


def fit_mlp(
    vectors: Tensor,
    labels: Tensor,
    valid_vectors: Tensor,
    valid_labels: Tensor,
    *,
    n_labels: int,
    config: HeadConfig,
    settings: FitSettings,
    seed: int = 0,
) -> TrainedHead:
    """Trains a head and keeps the epoch with the lowest held-out loss; the accuracy of few texts says less.

    An epoch is an improvement if its accuracy or its loss is the best so far.

    Args:
        vectors: [texts, dim], float32, to train on.
        labels: [texts], 0 to `n_labels` - 1.
        valid_vectors, valid_labels: the same of the held-out texts.
        seed: of the initial weights, the order of texts, and dropout. torch's global random state is left alone.

    Raises:
        InputError: the losses are not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(config, inputs=vectors.size(1), labels=n_labels)
        head.standardise(vectors)
        best, waited, done = score(head, valid_vectors, valid_labels), 0, 0
        accuracy = best.accuracy  # the best, of any epoch
        weights = copy.deepcopy(head.state_dict())
        is_adam = settings.optimizer == "adam"
        optimizer = (torch.optim.Adam if is_adam else torch.optim.SGD)(head.parameters(), lr=settings.rate)
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - is_adam * n / settings.max_epochs)
        for epoch in range(1, settings.max_epochs + 1):
            _train_epoch(head, optimizer, vectors, labels, batch_size=settings.batch_size)
            decay.step()
            reached = score(head, valid_vectors, valid_labels)
            if not math.isfinite(reached.loss):
                raise InputError(
                    f"the losses are not finite after {epoch} epochs: give a lower learning rate",
                    argument="learning_rate",
                )
            improved = reached.accuracy > accuracy or reached.loss < best.loss
            waited, accuracy = 0 if improved else waited + 1, max(accuracy, reached.accuracy)
            if reached.loss < best.loss:
                best, done, weights = reached, epoch, copy.deepcopy(head.state_dict())
            if waited == settings.patience:
                break
    head.load_state_dict(weights)
    return TrainedHead(head, best, done, best_temperature(head, valid_vectors, valid_labels))


def _train_epoch(
    head: Head, optimizer: torch.optim.Optimizer, vectors: Tensor, labels: Tensor, *, batch_size: int
) -> None:
    head.train()
    for rows in torch.randperm(len(vectors)).split(batch_size):
        loss = F.cross_entropy(head(vectors[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


_SHAPES = [
    HeadConfig(hidden_layers=0, hidden_size=128, dropout=0.0),  # which has no use for size and dropout
    *(
        HeadConfig(hidden_layers=n, hidden_size=size, dropout=rate)
        for n in (1, 2)
        for size in (128, 256, 512, 1_024)
        for rate in (0.75, 0.5, 0.25)
    ),
]
TABLE_8 = tuple((shape, optimizer) for optimizer in RATES for shape in _SHAPES)
"""Table 8 of ConveRT's paper: hidden layers, their size, dropout and optimizer; 50 different ones."""


class Trial(NamedTuple):
    """One point of a grid and its score on the held-out texts."""

    config: HeadConfig
    settings: FitSettings
    accuracy: float
    loss: float


def grid_search(
    fit: Callable[[HeadConfig, FitSettings], TrainedHead],
    settings: FitSettings,
    *,
    grid: Sequence[tuple[HeadConfig, HeadOptimizer]] = TABLE_8,
    on_progress: Callable[[str], object],
) -> list[Trial]:
    """Trains all heads of a grid, each optimizer with the paper's rate, and sorts them: by accuracy, then by loss.

    Args:
        settings: all but the optimizer and its rate.
        grid: shapes and optimizers.
        on_progress: called with one line per finished head.
    """
    trials = []
    for number, (config, optimizer) in enumerate(grid, start=1):
        own = replace(settings, optimizer=optimizer, learning_rate=None)
        trials.append(Trial(config, own, *fit(config, own).valid))
        on_progress(f"{number} of {len(grid)}: {config}, {optimizer}: held out {trials[-1].accuracy:.1%}")
    return sorted(trials, key=lambda one: (-one.accuracy, one.loss))
