"""Optimizer updates: gradient accumulation, clipping, finiteness check, optimizer and schedule steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyencoder.training.distributed import sum_gradients
from polyencoder.training.optimizer import clip_embeddings
from polyencoder.training.precision import Precision
from polyencoder.training.schedule import Schedule
from polyencoder.training.skipped import FiniteUpdates


class OptimizerUpdates:
    """Updates by a torch optimizer.

    accumulate: batches per update (gradient accumulation, mean). clip: the maximum global gradient norm; None for no
    limit. max_nonfinite: the most consecutive updates skipped for non-finite losses or gradients.

    Attributes:
        count: the updates so far. norm: the last update's gradient norm before clipping. left_out: the updates skipped,
            those that a float16 loss scale skipped included.
        time: the fraction of the time limit that has passed, set by the trainer; 0 without one.
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
        self.model, self.optimizer, self.schedule, self.precision = model, optimizer, schedule, precision
        self.count = self.left_out = 0
        self.norm = self.time = 0.0
        self.accumulate, self._clip = accumulate, clip
        self._collected = 0  # batches since the last update
        self._finite = FiniteUpdates(limit=max_nonfinite)

    @property
    def learning_rate(self) -> float:
        """The next update's learning rate."""
        return self.schedule.learning_rate

    @property
    def is_under_way(self) -> bool:
        """Whether gradients of an incomplete update are accumulated."""
        return self._collected > 0

    def autocast(self) -> torch.autocast:
        """Autocast for the forward pass."""
        return self.precision.autocast()

    def zero_grad(self) -> None:
        """Before a batch: clears the gradients of the last update."""
        if self._collected == 0:
            self.optimizer.zero_grad()

    def check_losses(self, losses: Tensor) -> None:
        """Skips the update of a batch with non-finite losses [batch]."""
        self._finite.check_losses(losses)

    def backward(self, loss: Tensor) -> None:
        """Accumulates a batch's gradients."""
        self.precision.backward(loss / self.accumulate)
        self._collected = (self._collected + 1) % self.accumulate

    def step(self) -> None:
        """Updates the weights, if enough batches are accumulated."""
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
            if self.precision.scales and not self._finite.check_scaled(self.norm, number=self.count + 1):
                self.left_out += 1
        self.count += 1
        self.schedule.step(self.count, time=self.time)

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from: tensors, numbers and containers of them."""
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
