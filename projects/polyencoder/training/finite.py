"""Skips updates with non-finite loss or gradients; too many in a row end training."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from polyencoder.errors import ConfigError, TrainingError
from polyencoder.training.distributed import sum_of_all

_log = logging.getLogger(__name__)

OVERFLOWS = 50  # the scale of a float16 loss begins at 2**16 and is halved at each: it is tiny long before
DIVERGED = "its training has diverged; a lower learning rate or a longer warm-up may help"


class FiniteUpdates:
    """Counts consecutive skipped updates, and ends training after too many.

    Args:
        limit: this many in a row are an error; at least 1.
    """

    def __init__(self, *, limit: int) -> None:
        if limit < 1:
            raise ConfigError(f"max_nonfinite is {limit}; it must be at least 1", argument="max_nonfinite")
        self._limit = limit
        self.in_a_row = 0
        """Updates skipped in a row; a resumed run continues to count."""
        self._overflows = 0  # updates in a row with a float16 overflow
        self._bad_loss: float | None = None  # of a batch since the last update

    def check_losses(self, losses: Tensor) -> bool:
        """Notes a batch's losses [batch] before its update; whether they are finite."""
        total = float(losses.sum())
        if not math.isfinite(total):
            self._bad_loss = total
        return math.isfinite(total)

    def check_scaled(self, norm: float, *, number: int) -> bool:
        """Whether the scaler of a float16 loss has made an update: it skips gradients whose norm is not finite.

        Raises:
            TrainingError: it has left out `OVERFLOWS` in a row: no scale helps.
        """
        self._overflows = 0 if math.isfinite(norm) else self._overflows + 1
        if self._overflows >= OVERFLOWS:
            raise TrainingError(
                f"update {number}: the gradients are not finite at any scale of the loss, as in the {OVERFLOWS} "
                f"updates up to it. What was saved before stays. {DIVERGED.capitalize()}"
            )
        return self._overflows == 0

    def leaves_out(self, model: nn.Module, *, number: int, scaled: bool) -> bool:
        """Whether to skip the next update, the same in all processes. Gradients must be summed already.

        Args:
            number: of the update, from 1.
            scaled: whether the loss is scaled (float16), so that its scaler skips overflows.

        Raises:
            TrainingError: `limit` updates in a row were not finite.
        """
        bad_loss, self._bad_loss = self._bad_loss, None
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        reason = None
        if sum_of_all(int(bad_loss is not None), device=next(model.parameters()).device):
            reason = "the loss is not finite" if bad_loss is None else f"the loss is {bad_loss}"
        elif gradients and not scaled and not torch.stack([g.norm() for g in gradients]).isfinite().all():
            reason = "the gradients are not finite"
        if reason is None:
            self.in_a_row = 0
            return False
        self.in_a_row += 1
        if self.in_a_row >= self._limit:
            raise TrainingError(
                f"update {number}: {reason}, as in the {self._limit} updates up to it, as many as max_nonfinite "
                f"allows. Saved models are unchanged. {DIVERGED.capitalize()}",
                argument="max_nonfinite",
            )
        _log.warning(
            f"update {number}: {reason}, so it is skipped. {self._limit - self.in_a_row} more in a row end training "
            f"(max_nonfinite is {self._limit})"
        )
        return True
