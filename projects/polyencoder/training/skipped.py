"""Skips, up to a limit in a row: batches without negatives, and updates that are not finite."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from polyencoder.errors import InputError, TrainingError
from polyencoder.settings.training import HardNegatives
from polyencoder.training.distributed import sum_over_processes

_log = logging.getLogger(__name__)

AT_FIRST = 100  # batches in a row, before the first that can be trained on
LATER = 10_000  # once a batch was trained on
OVERFLOWS = 50  # the scale of a float16 loss begins at 2**16 and is halved at each: it is tiny long before
DIVERGED = "its training has diverged; a lower learning rate or a longer warm-up may help"


class SkippedBatches:
    """Counts consecutive batches that no process could train on, and ends training after too many."""

    def __init__(self, hard: HardNegatives) -> None:
        self._hard, self._in_a_row = hard, 0
        self.has_trained = False
        """Whether any batch was not skipped."""

    def count(self, *, is_skipped: bool) -> None:
        """Counts a batch, in all processes. Raises InputError after too many skipped ones in a row."""
        if not is_skipped:
            self.has_trained, self._in_a_row = True, 0
            return
        self._in_a_row += 1
        if self._in_a_row >= (LATER if self.has_trained else AT_FIRST) + (self._hard.every if self._hard.count else 0):
            raise self.build_error(self._in_a_row)

    def build_error(self, batches: int) -> InputError:
        """The error for a run whose batches, all or the last ones, were skipped."""
        which = f"nothing more can be trained: in each of the last {batches} batches"
        if not self.has_trained:
            which = f"nothing was trained: in all of {batches} batches"
        advice = "give a larger batch_size, or data with different labels"
        if self._hard.count:
            ranks = "-".join(map(str, self._hard.ranks))
            advice += f"; no hard negative was found in ranks {ranks}"
        return InputError(
            f"{which} the label was the only candidate, or no candidate was wrong; {advice}", argument="batch_size"
        )


class FiniteUpdates:
    """Skips updates with a loss or gradients that are not finite; `limit` in a row end training."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self.in_a_row = 0
        """Updates skipped in a row; a resumed run continues to count."""
        self._overflows = 0  # updates in a row with a float16 overflow
        self._bad_loss: float | None = None  # of a batch since the last update

    def check_losses(self, losses: Tensor) -> None:
        """Notes a batch's losses [batch] before its update, if they are not finite."""
        total = float(losses.sum())
        if not math.isfinite(total):
            self._bad_loss = total

    def check_scaled(self, norm: float, *, number: int) -> bool:
        """Whether the scaler of a float16 loss made an update. TrainingError: it left out `OVERFLOWS` in a row."""
        self._overflows = 0 if math.isfinite(norm) else self._overflows + 1
        if self._overflows >= OVERFLOWS:
            raise TrainingError(
                f"update {number}: the gradients are not finite at any scale of the loss, as in the {OVERFLOWS} "
                f"updates up to it. What was saved before stays. {DIVERGED.capitalize()}"
            )
        return self._overflows == 0

    def leaves_out(self, model: nn.Module, *, number: int, scaled: bool) -> bool:
        """Whether to skip update `number`, the same in all processes. Gradients must be summed already.

        scaled: whether the loss has a scaler, which skips overflows. TrainingError: `limit` in a row were not finite.
        """
        bad_loss, self._bad_loss = self._bad_loss, None
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        reason = None
        if sum_over_processes(int(bad_loss is not None), device=next(model.parameters()).device):
            reason = "the loss is not finite" if bad_loss is None else f"the loss is {bad_loss}"
        elif gradients and not scaled and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
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
