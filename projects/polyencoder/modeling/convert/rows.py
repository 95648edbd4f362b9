"""A batch of sequences as the rows of their tokens: what a layer does with each token by itself needs no padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polyencoder.modeling.tracing import is_traced
from polyencoder.text.tokens import length_groups

__all__ = ["Rows"]

PASS = 64  # tokens of padding whose attention takes as long as that of one more group takes besides


@dataclass(frozen=True)
class Rows:
    """The places of the tokens in a padded batch, in the order of their rows.

    mask: [batch, length]; the tokens of a sequence are adjacent. places: [tokens] of them in the flattened batch.
    parts: where attention takes sequences of like length together, each part's own rows; empty where it takes all of
    them. order: [batch] of the sequences in the parts.
    """

    mask: Tensor
    places: Tensor
    parts: tuple[Rows, ...] = ()
    order: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor) -> Rows:
        """In the order of the batch."""
        return cls(mask, mask.flatten().nonzero().squeeze(1))

    @classmethod
    def grouped(cls, mask: Tensor) -> Rows:
        """By length, where that saves a CPU attention to padding."""
        if is_traced() or mask.device.type != "cpu":
            return cls.of(mask)
        lengths = mask.sum(1)
        groups = length_groups(lengths.tolist(), pass_cost=PASS)
        if len(groups) <= 1:
            return cls.of(mask)
        order = torch.tensor([row for group in groups for row in group])
        batch = torch.arange(mask.numel()).view_as(mask)
        parts = [lengths[group] for group in order.split([len(group) for group in groups])]
        own = [torch.arange(max(1, int(part[-1]))) < part[:, None] for part in parts]  # the last one is the longest
        return cls(mask, batch[order][mask[order]], tuple(cls.of(part) for part in own), order)

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

    def each(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Applies a function of tensors [tokens, ...] and their rows to one part after the other."""
        if not self.parts:
            return function(*inputs, self)
        pieces = zip(*(tensor.split([len(part.places) for part in self.parts]) for tensor in inputs), strict=True)
        return torch.cat([function(*piece, part) for piece, part in zip(pieces, self.parts, strict=True)])

    def in_order(self, texts: Tensor) -> Tensor:
        """[batch, ...] one for each sequence, in the order of the batch, where they come in that of the parts."""
        return texts if self.order is None else texts[self.order.argsort()]
