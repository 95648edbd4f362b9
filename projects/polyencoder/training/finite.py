"""Non-finite updates are skipped: those whose loss or gradients are nan or infinite; too many end training."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from polyencoder.errors import ConfigError, TrainingError
from polyencoder.training.distributed import sum_of_all

__all__ = ["DIVERGED", "FiniteUpdates"]

_log = logging.getLogger(__name__)

DIVERGED = "its training has diverged; a lower learning rate or a longer warm-up may help"


class FiniteUpdates:
    """Counts the updates in a row that have to be left out, and ends training when these are too many.

    Args:
        limit: at least 1: this many in a row are an error.
    """

    def __init__(self, *, limit: int) -> None:
        if limit < 1:
            raise ConfigError(f"max_nonfinite is {limit}; it must be at least 1", argument="max_nonfinite")
        self._limit = limit
        self.in_a_row = 0
        """Updates that were left out since the last one that was not; a resumed run continues to count."""
        self._bad_loss: float | None = None  # of a batch since the last update

    def check_losses(self, losses: Tensor) -> bool:
        """Take note of a batch's losses [batch], before the update that it is part of; whether they are finite."""
        total = float(losses.sum())
        if not math.isfinite(total):
            self._bad_loss = total
        return math.isfinite(total)

    def leaves_out(self, model: nn.Module, *, number: int, scaled: bool) -> bool:
        """Whether the next update has to be left out, in all processes alike. Their gradients are summed already.

        Args:
            model: whose gradients they are.
            number: of the update, from 1.
            scaled: the gradients are those of a scaled loss (float16), whose scaler leaves out what overflows.

        Raises:
            TrainingError: as many before it were left out as are allowed.
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
                f"allows. What was saved before stays. {DIVERGED.capitalize()}",
                argument="max_nonfinite",
            )
        _log.warning(
            f"update {number}: {reason}, so it is left out. {self._limit - self.in_a_row} more in a row end training "
            f"(max_nonfinite is {self._limit})"
        )
        return True
