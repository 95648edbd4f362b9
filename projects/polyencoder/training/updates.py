"""Optimizer updates: gradients accumulated, clipped, checked, and handed to the optimizer and its schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import sum_gradients
from polyencoder.training.finite import FiniteUpdates
from polyencoder.training.optimizer import clip_embeddings
from polyencoder.training.precision import Precision
from polyencoder.training.schedule import Schedule

__all__ = ["OptimizerUpdates"]


class OptimizerUpdates:
    """Updates by an optimizer of torch.

    Args:
        model: the one that is trained.
        optimizer, schedule, precision: how.
        accumulate: of how many batches an update takes the mean gradient.
        clip: the largest norm of all gradients together; None for no limit.
        max_nonfinite: how many updates in a row may be left out for losses or gradients that are not finite.

    Attributes:
        count: the updates so far. norm: of the last update's gradients, before they were clipped.
        left_out: updates that were left out so far. time: the share of the run's time that has passed, as whoever
        trains says; 0 where there is no limit.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        precision: Precision,
        accumulate: int = 1,
        clip: float | None = None,
        max_nonfinite: int = 5,
    ) -> None:
        if accumulate < 1:
            raise ConfigError(f"gradients of {accumulate} batches cannot be accumulated; give 1 or more")
        if clip is not None and not clip > 0:
            raise ConfigError(f"gradients cannot be clipped at a norm of {clip}; it must be above 0")
        self.model, self.optimizer, self.schedule, self.precision = model, optimizer, schedule, precision
        self.count = self.left_out = 0
        self.norm = self.time = 0.0
        self._accumulate, self._clip = accumulate, clip
        self._collected = 0  # batches since the last update
        self._finite = FiniteUpdates(limit=max_nonfinite)

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return self.schedule.learning_rate

    @property
    def is_under_way(self) -> bool:
        """Whether gradients are collected for an update that needs further batches."""
        return self._collected > 0

    def autocast(self) -> torch.autocast:
        """The precision that a batch is scored in."""
        return self.precision.autocast()

    def zero_grad(self) -> None:
        """Before a batch: forget the gradients of the last update."""
        if self._collected == 0:
            self.optimizer.zero_grad()

    def check_losses(self, losses: Tensor) -> None:
        """Leave out the update of a batch whose losses [batch] are not finite."""
        self._finite.check_losses(losses)

    def backward(self, loss: Tensor) -> None:
        """Add a batch's gradients."""
        self.precision.backward(loss / self._accumulate)
        self._collected = (self._collected + 1) % self._accumulate

    def step(self) -> None:
        """Change the weights, if enough batches were collected."""
        if self._collected:
            return
        parameters = list(self.model.parameters())
        sum_gradients(parameters)
        left_out = self._finite.leaves_out(self.model, number=self.count + 1, scaled=self.precision.scales)
        if left_out:
            self.left_out += 1
            self.optimizer.zero_grad()
        else:
            self.precision.unscale(self.optimizer)
            clip_embeddings(self.optimizer)
            clip = self._clip if self._clip is not None else float("inf")
            self.norm = float(nn.utils.clip_grad_norm_(parameters, clip))
            self.precision.step(self.optimizer)
        self.count += 1
        self.schedule.step(self.count, time=self.time)

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, in tensors, numbers and containers of them."""
        gradients = [p.grad for p in self.model.parameters()] if self._collected else []
        return {
            "count": self.count,
            "left_out": self.left_out,
            "left_out_in_a_row": self._finite.in_a_row,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "precision": self.precision.state_dict(),
            "accumulated": {"batches": self._collected, "gradients": gradients},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.left_out = state["count"], state["left_out"]
        self._finite.in_a_row = state["left_out_in_a_row"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.precision.load_state_dict(state["precision"])
        self._collected = state["accumulated"]["batches"]
        for parameter, gradient in zip(self.model.parameters(), state["accumulated"]["gradients"], strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter)
