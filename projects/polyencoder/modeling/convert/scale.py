"""The scale of cosines, which rises while a model learns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["AnnealedScale"]


class AnnealedScale(nn.Module):
    """From 1 to the square root of the dimension, linearly over the first batches (Section 2.1): cosines to scores.

    How many batches there were is a buffer: it is saved with the weights, continues in a resumed run, and is kept
    when the model is fine-tuned.
    """

    batches: Tensor

    def __init__(self, dim: int, *, over: int) -> None:
        super().__init__()
        self.highest, self.over = math.sqrt(dim), over
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        """The current scale: a number."""
        done = (self.batches / self.over).clamp(max=1.0) if self.over else torch.ones_like(self.batches)
        return 1 + (self.highest - 1) * done

    def why_low(self, batches: int) -> str | None:
        """Why a run of `batches` more batches is too short for the scale to rise; None if it is long enough.

        With a low scale the model learns little.
        """
        done = int(self.batches) + batches
        if done >= self.over:
            return None
        scale = 1 + (self.highest - 1) * done / self.over
        return (
            f"the scale of cosines rises over {self.over} batches, and the run ends after {done}, with a scale of "
            f"{scale:.1f} in the place of {self.highest:.1f}: a new model may have a smaller scale_batches"
        )

    def advance(self) -> None:
        """After a batch."""
        self.batches += 1
