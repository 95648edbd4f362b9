"""Sequence packing: a padded batch as one row of its tokens, so that padding is not computed.

Linear layers, normalisations and activations are token-wise and run on the packed row. Only attention needs sequences:
on a CPU it splits the row into blocks of similar length; on a GPU a variable-length kernel takes the whole row, or
blocks are padded for attention alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.modeling import varlen
from polyencoder.modeling.cpu.attention import apply_attention, combine_bias
from polyencoder.modeling.varlen import AttentionOptions
from polyencoder.text.batches import group_lengths

BLOCK = 16  # fixed cost of a call of attention with gradients, in tokens of padding
FORWARD_BLOCK = 4  # the same without gradients
GPU_BLOCK = 1024  # fixed cost of a call of a GPU's attention, in tokens of padding
_USUAL = AttentionOptions()


@dataclass(frozen=True)
class Packing(ABC):
    """A packed batch: the tokens of all sequences in one row.

    places: [tokens], positions in the flattened padded batch; positions: [tokens], positions in the sequence.
    """

    places: Tensor
    positions: Tensor

    def take(self, values: Tensor) -> Tensor:
        """Packs [batch, length] into one row [1, tokens]."""
        return values.flatten()[self.places].unsqueeze(0)

    def put(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """Unpacks a row's outputs, [1, tokens, dim], to [batch, length, dim], 0 at padding."""
        outputs = rows.new_zeros(batch * length, rows.size(-1))
        return outputs.index_copy(0, self.places, rows[0]).view(batch, length, -1)

    def cut(self, tokens: int) -> Sequence[Packing]:
        """Splits the row into rows of about `tokens` tokens; `put` takes their concatenation."""
        return [self]

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _USUAL) -> Tensor:
        """Attention within each sequence of a row.

        Args:
            query, key, value: [1, heads, tokens, dim].
            options: dropout, scale, window and bias.

        Returns:
            [1, tokens, heads, dim]
        """


@dataclass(frozen=True)
class Blocks(Packing):
    """Packing for a CPU: sequences are bucketed by length, each bucket a block padded to its longest.

    blocks: (sequences, length) of each; masks: [sequences, 1, 1, length] of each block, False at padding, or None
    without padding.
    """

    blocks: list[tuple[int, int]]
    masks: list[Tensor | None]

    def cut(self, tokens: int) -> Sequence[Packing]:
        count = -(-len(self.places) // tokens)
        if count <= 1:
            return [self]
        rows: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        masks: list[list[Tensor | None]] = [[] for _ in range(count)]
        end = 0
        for (sequences, length), mask in zip(self.blocks, self.masks, strict=True):
            middles = end + length * np.arange(sequences) + length // 2
            end, first = end + length * sequences, 0
            for row, group in groupby((middles * count // len(self.places)).tolist()):
                last = first + len(list(group))
                rows[row].append((last - first, length))
                masks[row].append(None if mask is None else mask[first:last])
                first = last
        sizes = [sum(n * length for n, length in row) for row in rows]
        parts = zip(self.places.split(sizes), self.positions.split(sizes), rows, masks, strict=True)
        return [Blocks(*part) for part in parts if part[2]]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _USUAL) -> Tensor:
        sizes = [count * length for count, length in self.blocks]
        split = [tensor.squeeze(0).transpose(0, 1).split(sizes) for tensor in (query, key, value)]
        outputs = []
        for *parts, block, mask in zip(*split, self.blocks, self.masks, strict=True):
            q, k, v = (part.unflatten(0, block).transpose(1, 2) for part in parts)
            seen = _limit_window(options.window, block[1], mask)
            bias = None if options.bias is None else options.bias[:, : block[1], : block[1]]
            output = apply_attention(q, k, v, attn_mask=seen, dropout_p=options.dropout, scale=options.scale, bias=bias)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).unsqueeze(0)

    @property
    def starts(self) -> Tensor:
        """[sequences]: where each begins in the row."""
        return (self.positions == 0).nonzero().squeeze(1)

    def put_first(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """Unpacks one output per sequence, [1, sequences, dim] in the row's order, to [batch, 1, dim]."""
        outputs = rows.new_zeros(batch, rows.size(-1))
        return outputs.index_copy(0, self.places[self.starts] // length, rows[0]).unsqueeze(1)

    def attend_first(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
        """Attention of each sequence's first token over the sequence.

        Args:
            query: [1, heads, sequences, dim], in the row's order.
            key, value: [1, heads, tokens, dim].
            scale: as in `attend`.

        Returns:
            [1, sequences, heads, dim]
        """
        queries = query.squeeze(0).transpose(0, 1).split([count for count, _ in self.blocks])
        sizes = [count * length for count, length in self.blocks]
        rows = [tensor.squeeze(0).transpose(0, 1).split(sizes) for tensor in (key, value)]
        outputs = []
        for q, *parts, block, mask in zip(queries, *rows, self.blocks, self.masks, strict=True):
            k, v = (part.unflatten(0, block).transpose(1, 2) for part in parts)
            outputs.append(apply_attention(q.unsqueeze(2), k, v, attn_mask=mask, scale=scale).squeeze(2))
        return torch.cat(outputs).unsqueeze(0)


@dataclass(frozen=True)
class Ragged(Packing):
    """Packing for a GPU: sequences in the order of the batch, for variable-length attention.

    ends: int32 [sequences + 1], cumulative lengths from 0; lengths: of the sequences.
    """

    ends: Tensor
    lengths: list[int]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _USUAL) -> Tensor:
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [tokens, heads, dim]
        kernel = varlen.find_kernel(q, options)
        if kernel is not None:
            return kernel(q, k, v, self.ends, max(self.lengths), options).unsqueeze(0)
        return self._attend_in_blocks(q, k, v, options).unsqueeze(0)

    def _attend_in_blocks(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Attention over a row [tokens, heads, dim] without a kernel for it: in blocks of similar length."""
        blocks = self._padded
        sizes = [count * length for count, length in blocks.shapes]
        split = [row[blocks.taken].split(sizes) for row in (query, key, value)]
        outputs = []
        for *parts, shape, mask in zip(*split, blocks.shapes, blocks.masks, strict=True):
            q, k, v = (part.unflatten(0, shape).transpose(1, 2) for part in parts)
            seen = _limit_window(options.window, shape[1], mask)
            if options.bias is not None:
                seen = combine_bias(options.bias[:, : shape[1], : shape[1]].to(q.dtype), seen)
            output = F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, dropout_p=options.dropout, scale=options.scale
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)[blocks.inverse]

    @cached_property
    def _padded(self) -> _PaddedBlocks:
        """The row as blocks, each padded to its longest sequence."""
        groups = group_lengths(self.lengths, pass_cost=GPU_BLOCK)
        starts = np.cumsum([0, *self.lengths])
        shapes, masks, taken, order = [], [], [], []
        for group in groups:
            lengths = np.asarray(self.lengths)[group]
            steps = np.arange(lengths.max())
            # padding repeats a sequence's last token, which nothing attends to
            taken.append((starts[group][:, None] + np.minimum(steps, lengths[:, None] - 1)).ravel())
            real = steps < lengths[:, None]
            order.append(real.ravel())
            shapes.append(real.shape)
            masks.append(torch.from_numpy(real[:, None, None]).to(self.places.device))
        row, positions = np.concatenate(taken), np.concatenate(order).nonzero()[0]
        inverse = np.empty_like(positions)
        inverse[row[positions]] = positions
        return _PaddedBlocks(
            torch.from_numpy(row).to(self.places.device),
            torch.from_numpy(inverse).to(self.places.device),
            shapes,
            masks,
        )


class _PaddedBlocks(NamedTuple):
    """Blocks of a row: the tokens that fill them, and where each token's output is in them.

    taken: [padded tokens]; given: [tokens]; shapes: (sequences, length) and masks: [sequences, 1, 1, length] of each.
    """

    taken: Tensor
    inverse: Tensor
    shapes: list[tuple[int, int]]
    masks: list[Tensor]


def _limit_window(window: int | None, length: int, mask: Tensor | None) -> Tensor | None:
    """Combines a padding mask [..., 1, length] with the sliding window: [..., length, length]."""
    if window is None or length <= window:
        return mask
    places = torch.arange(length, device=None if mask is None else mask.device)
    near = (places - places.unsqueeze(1)).abs() < window
    return near if mask is None else near & mask


def pack(mask: Tensor, *, training: bool = True) -> Packing:
    """The packing of a right-padded batch with this mask [batch, length].

    An empty sequence gets one padding token. Synchronises with a GPU once.
    """
    if mask.device.type != "cpu":
        return _build_ragged(mask)
    return _build_blocks(mask, cost=BLOCK if training else FORWARD_BLOCK)


def _build_blocks(mask: Tensor, *, cost: int) -> Blocks:
    lengths = mask.sum(1).clamp(min=1).numpy()
    groups = group_lengths(lengths.tolist(), pass_cost=cost)
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
    return Blocks(torch.from_numpy(places), torch.from_numpy(positions), blocks, masks)


def _build_ragged(mask: Tensor) -> Ragged:
    lengths = mask.sum(1).clamp(min=1).tolist()
    ends = np.cumsum([0, *lengths])
    positions = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    places = np.repeat(np.arange(len(lengths)) * mask.size(1), lengths) + positions
    device = mask.device
    return Ragged(
        torch.from_numpy(places).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(ends.astype(np.int32)).to(device),
        lengths,
    )
