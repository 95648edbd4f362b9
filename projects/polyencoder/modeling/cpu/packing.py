"""A batch of sequences as one row of tokens, for what a transformer does with each token by itself.

Linear layers, normalisations and activations see one token at a time. They need no padding, and take the tokens of all
sequences in one go. Attention alone sees sequences: it takes the row apart into blocks of like length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.text.lengths import length_groups

__all__ = ["Packing", "pack"]

BLOCK = 16  # tokens that one more call of attention costs as much as


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded batch are in one row: block after block, sequence after sequence.

    places: [tokens] the place of each in the flattened batch; positions: [tokens] its place in its sequence. blocks:
    how many sequences of which length each has; masks: for each block [sequences, 1, 1, length], False at what little
    padding is left, or None without any.
    """

    places: Tensor
    positions: Tensor
    blocks: list[tuple[int, int]]
    masks: list[Tensor | None]

    def take(self, values: Tensor) -> Tensor:
        """[batch, length] as one row: [1, tokens]."""
        return values.flatten()[self.places].unsqueeze(0)

    def put(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """What a row gives, [1, tokens, dim], as [batch, length, dim], 0 at what was left out."""
        outputs = rows.new_zeros(batch * length, rows.size(-1))
        return outputs.index_copy(0, self.places, rows[0]).view(batch, length, -1)

    def attend(
        self,
        kernel: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """`scaled_dot_product_attention` within each sequence of a row, [1, heads, tokens, dim], by `kernel`."""
        sizes = [count * length for count, length in self.blocks]
        split = (tensor[0].transpose(0, 1).split(sizes) for tensor in (query, key, value))
        outputs = []
        for *parts, block, mask in zip(*split, self.blocks, self.masks, strict=True):
            inputs = (part.unflatten(0, block).transpose(1, 2) for part in parts)
            outputs.append(kernel(*inputs, attn_mask=mask, **options).transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).transpose(0, 1).unsqueeze(0)


def pack(mask: Tensor) -> Packing:
    """The packing of a batch with this mask, [batch, length]: sequences that begin at the left, padding at the right.

    A sequence without any token gets one, of padding.
    """
    lengths = mask.sum(1).clamp(min=1).numpy()
    groups = length_groups(lengths.tolist(), pass_cost=BLOCK)
    blocks = [(len(rows), int(lengths[rows[-1]])) for rows in groups]
    order = np.concatenate([np.asarray(rows) for rows in groups])
    widths = np.repeat([length for _, length in blocks], [count for count, _ in blocks])
    positions = np.arange(widths.sum()) - np.repeat(widths.cumsum() - widths, widths)
    places = np.repeat(order * mask.size(1), widths) + positions
    real = torch.from_numpy(positions < np.repeat(lengths[order], widths))
    masks = [
        None if bool(part.all()) else part.view(count, 1, 1, length)
        for part, (count, length) in zip(real.split([n * width for n, width in blocks]), blocks, strict=True)
    ]
    return Packing(torch.from_numpy(places), torch.from_numpy(positions), blocks, masks)
