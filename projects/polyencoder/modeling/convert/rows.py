"""A batch of sequences as the rows of their tokens: what a layer does with each token by itself needs no padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polyencoder.modeling.tracing import is_traced

__all__ = ["Rows"]


@dataclass(frozen=True)
class Rows:
    """Which places of a padded batch are tokens.

    mask: [batch, length]; the tokens of a sequence stand side by side. places: [tokens] of them in the flattened batch.
    """

    mask: Tensor
    places: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> Rows:
        return cls(mask, mask.flatten().nonzero().squeeze(1))

    @property
    def positions(self) -> Tensor:
        """[tokens] the place of each in its sequence, from 0."""
        return self.take(self.mask.long().cumsum(1) - 1)

    @cached_property
    def distances(self) -> Tensor:
        """[length, length]: how far to the right of token i token j is."""
        places = torch.arange(self.mask.size(1), device=self.mask.device)
        return places[None, :] - places[:, None]

    @cached_property
    def _is_full(self) -> bool:
        """Whether there is no padding, so that nothing has to be moved."""
        return not is_traced() and len(self.places) == self.mask.numel()

    def take(self, padded: Tensor) -> Tensor:
        """[batch, length, ...] -> [tokens, ...]."""
        rows = padded.flatten(0, 1)
        return rows if self._is_full else rows[self.places]

    def put(self, rows: Tensor) -> Tensor:
        """[tokens, dim] -> [batch, length, dim], 0 at padding."""
        batch, length = self.mask.shape
        if self._is_full:
            return rows.view(batch, length, rows.size(-1))
        padded = rows.new_zeros(batch * length, rows.size(-1))
        return padded.index_copy(0, self.places, rows).view(batch, length, rows.size(-1))
