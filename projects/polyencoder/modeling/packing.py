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
_DEFAULTS = AttentionOptions()


@dataclass(frozen=True)
class Packing(ABC):
    """A packed batch: the tokens of all sequences in one row.

    indices: [tokens], positions in the flattened padded batch; positions: [tokens], positions in the sequence.
    """

    indices: Tensor
    positions: Tensor

    def take(self, values: Tensor) -> Tensor:
        """Packs [batch, length] into one row [1, tokens]."""
        return values.flatten()[self.indices].unsqueeze(0)

    def put(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """Unpacks a row's outputs, [1, tokens, dim], to [batch, length, dim], 0 at padding."""
        outputs = rows.new_zeros(batch * length, rows.size(-1))
        return outputs.index_copy(0, self.indices, rows[0]).view(batch, length, -1)

    def cut(self, tokens: int) -> Sequence[Packing]:
        """Splits the row into rows of about `tokens` tokens; `put` takes their concatenation."""
        return [self]

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _DEFAULTS) -> Tensor:
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
        count = -(-len(self.indices) // tokens)
        if count <= 1:
            return [self]
        rows: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        masks: list[list[Tensor | None]] = [[] for _ in range(count)]
        end = 0
        for (sequences, length), mask in zip(self.blocks, self.masks, strict=True):
            middles = end + length * np.arange(sequences) + length // 2
            end, first = end + length * sequences, 0
            for row, group in groupby((middles * count // len(self.indices)).tolist()):
                last = first + len(list(group))
                rows[row].append((last - first, length))
                masks[row].append(None if mask is None else mask[first:last])
                first = last
        sizes = [sum(sequences * length for sequences, length in row) for row in rows]
        parts = zip(self.indices.split(sizes), self.positions.split(sizes), rows, masks, strict=True)
        return [Blocks(*part) for part in parts if part[2]]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _DEFAULTS) -> Tensor:
        sizes = [count * length for count, length in self.blocks]
        split = [tensor.squeeze(0).transpose(0, 1).split(sizes) for tensor in (query, key, value)]
        outputs = []
        for *parts, block, mask in zip(*split, self.blocks, self.masks, strict=True):
            q, k, v = (part.unflatten(0, block).transpose(1, 2) for part in parts)
            mask = _limit_window(options.window, block[1], mask)
            bias = None if options.bias is None else options.bias[:, : block[1], : block[1]]
            output = apply_attention(q, k, v, attn_mask=mask, dropout_p=options.dropout, scale=options.scale, bias=bias)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).unsqueeze(0)

    @property
    def starts(self) -> Tensor:
        """[sequences]: the position at which each begins in the row."""
        return (self.positions == 0).nonzero().squeeze(1)

    def put_first(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """Unpacks one output per sequence, [1, sequences, dim] in the row's order, to [batch, 1, dim]."""
        outputs = rows.new_zeros(batch, rows.size(-1))
        return outputs.index_copy(0, self.indices[self.starts] // length, rows[0]).unsqueeze(1)

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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions = _DEFAULTS) -> Tensor:
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [tokens, heads, dim]
        kernel = varlen.find_kernel(q, options)
        if kernel is not None:
            return kernel(q, k, v, self.ends, max(self.lengths), options).unsqueeze(0)
        return self._attend_in_blocks(q, k, v, options).unsqueeze(0)

    def _attend_in_blocks(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Attention over a row [tokens, heads, dim] without a kernel for it: in blocks of similar length."""
        blocks = self._padded
        sizes = [count * length for count, length in blocks.shapes]
        split = [row[blocks.sources].split(sizes) for row in (query, key, value)]
        outputs = []
        for *parts, shape, mask in zip(*split, blocks.shapes, blocks.masks, strict=True):
            q, k, v = (part.unflatten(0, shape).transpose(1, 2) for part in parts)
            mask = _limit_window(options.window, shape[1], mask)
            if options.bias is not None:
                mask = combine_bias(options.bias[:, : shape[1], : shape[1]].to(q.dtype), mask)
            output = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=options.dropout, scale=options.scale
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)[blocks.inverse]

    @cached_property
    def _padded(self) -> _PaddedBlocks:
        """The row as blocks, each padded to its longest sequence."""
        groups = group_lengths(self.lengths, pass_cost=GPU_BLOCK)
        starts = np.cumsum([0, *self.lengths])
        shapes, masks, sources, order = [], [], [], []
        for group in groups:
            lengths = np.asarray(self.lengths)[group]
            steps = np.arange(lengths.max())
            # padding repeats a sequence's last token, which nothing attends to
            sources.append((starts[group][:, None] + np.minimum(steps, lengths[:, None] - 1)).ravel())
            valid = steps < lengths[:, None]
            order.append(valid.ravel())
            shapes.append(valid.shape)
            masks.append(torch.from_numpy(valid[:, None, None]).to(self.indices.device))
        row, positions = np.concatenate(sources), np.concatenate(order).nonzero()[0]
        inverse = np.empty_like(positions)
        inverse[row[positions]] = positions
        return _PaddedBlocks(
            torch.from_numpy(row).to(self.indices.device),
            torch.from_numpy(inverse).to(self.indices.device),
            shapes,
            masks,
        )


class _PaddedBlocks(NamedTuple):
    """Blocks of a row; shapes: (sequences, length), masks: [sequences, 1, 1, length] of each.

    sources: [padded tokens], their positions in the row; inverse: [tokens], their positions in the blocks.
    """

    sources: Tensor
    inverse: Tensor
    shapes: list[tuple[int, int]]
    masks: list[Tensor]


def _limit_window(window: int | None, length: int, mask: Tensor | None) -> Tensor | None:
    """Combines a padding mask [..., 1, length] with the sliding window: [..., length, length]."""
    if window is None or length <= window:
        return mask
    positions = torch.arange(length, device=None if mask is None else mask.device)
    in_window = (positions - positions.unsqueeze(1)).abs() < window
    return in_window if mask is None else in_window & mask


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
    indices = np.repeat(order * mask.size(1), widths) + positions
    valid = torch.from_numpy(positions < np.repeat(lengths[order], widths))
    masks = [
        None if bool(part.all()) else part.view(count, 1, 1, length)
        for part, (count, length) in zip(valid.split([count * length for count, length in blocks]), blocks, strict=True)
    ]
    return Blocks(torch.from_numpy(indices), torch.from_numpy(positions), blocks, masks)


def _build_ragged(mask: Tensor) -> Ragged:
    lengths = mask.sum(1).clamp(min=1).tolist()
    ends = np.cumsum([0, *lengths])
    positions = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    indices = np.repeat(np.arange(len(lengths)) * mask.size(1), lengths) + positions
    device = mask.device
    return Ragged(
        torch.from_numpy(indices).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(ends.astype(np.int32)).to(device),
        lengths,
    )
