"""Observations for calibration: the best scores of held-out examples, and which candidates are right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Observations:
    """The scores of the best candidates of each example."""

    scores: Tensor
    """float64 [examples, width], best first, padded with -inf. Of a search `DEPTH` and one for each right candidate are
    enough."""
    right: Tensor
    """bool [examples, width], the right candidates among them."""
    among: Tensor
    """[examples], the number of ranked candidates."""
    depth: int | None = None
    """The number of best candidates that a probability takes into account; None for all."""

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Tensor) -> Observations:
        return replace(self, scores=self.scores[rows], right=self.right[rows], among=self.among[rows])

    def without_the_right(self) -> Observations:
        """Copies the observations without the right candidates."""
        scores = self.scores.masked_fill(self.right, -torch.inf).sort(1, descending=True).values
        among = self.among - self.right.sum(1).to(self.among)
        return replace(self, scores=scores, right=torch.zeros_like(self.right), among=among.clamp(min=1))

    def where(self, answerable: Tensor) -> Observations:
        """Copies the observations, those that are not `answerable` (bool [examples]) without the right candidates."""
        other, rows = self.without_the_right(), answerable.unsqueeze(1)
        return replace(
            self,
            scores=torch.where(rows, self.scores, other.scores),
            right=self.right & rows,
            among=torch.where(answerable, self.among, other.among),
        )
