"""A BERT's layers over padded or packed texts, which may also see the cached keys and values of a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from polyencoder.modeling.backbone import Backbone
from polyencoder.text.batches import padded

ROW = 512
"""Tokens of a row of candidates: packed rows pay attention over their square, padded ones pay for padding."""
WIDER = 8  # dimensions of queries and keys for the bias; kernels take multiples of 8


@dataclass(frozen=True)
class Prefix:
    """What candidates see of contexts: keys and values [batch, heads, length, head dim] of each layer, mask [batch,
    length], and vectors [batch, dim] for the head."""

    kept: list[tuple[Tensor, Tensor]]
    mask: Tensor
    vectors: Tensor

    def select(self, rows: Tensor) -> Prefix:
        kept = [(keys[rows], values[rows]) for keys, values in self.kept]
        return Prefix(kept, self.mask[rows], self.vectors[rows])


@dataclass(frozen=True)
class Packed:
    """Candidates one behind the other in rows: no padding but at the rows' ends.

    ids, positions (each candidate's from 0), owner (a token's candidate as its place in the row, -1 at padding): [rows,
    length]. place, mask: each candidate's tokens in the flattened rows, [n, longest]. counts: candidates of each row.
    """

    ids: Tensor
    positions: Tensor
    owner: Tensor
    place: Tensor
    mask: Tensor
    counts: list[int]

    @classmethod
    def of(cls, candidates: Sequence[Sequence[int]], rows: Sequence[int] | None = None, *, device: Any) -> Packed:
        """Packs token ids. `rows`: each candidate's row, in ascending order; None: equal rows of about `ROW` tokens."""
        table, mask = padded(candidates, pad_id=0)
        lengths = mask.sum(1)
        before = lengths.cumsum() - lengths
        total = int(lengths.sum())
        equal = before * -(-total // ROW) // total
        row = np.unique(equal, return_inverse=True)[1] if rows is None else np.asarray(rows)
        counts = np.bincount(row)
        first = counts.cumsum() - counts  # candidate of each row
        start = before - before[first][row]  # in its row
        width = int((start + lengths).max())
        place = (row * width + start)[:, None] + np.minimum(np.arange(table.shape[1]), lengths[:, None] - 1)
        ids, positions, owner = (np.full(len(counts) * width, value) for value in (0, 0, -1))
        ids[place[mask]] = table[mask]
        positions[place[mask]] = np.nonzero(mask)[1]
        owner[place[mask]] = np.repeat(np.arange(len(row)) - first[row], lengths)
        in_rows = (part.reshape(len(counts), width) for part in (ids, positions, owner))
        parts = [torch.from_numpy(part).to(device, non_blocking=True) for part in (*in_rows, place, mask)]
        return cls(parts[0], parts[1], parts[2], parts[3], parts[4], counts.tolist())

    def row(self, number: int) -> Packed:
        """One row, whose tokens alone can be read."""
        here = slice(number, number + 1)
        of_row = (self.ids[here], self.positions[here], self.owner[here])
        return Packed(*of_row, self.place, self.mask, self.counts[here])

    @property
    def attends(self) -> Tensor:
        """Which tokens of a row see each other: those of one candidate. [rows, length, length]"""
        return self.owner.unsqueeze(2) == self.owner.unsqueeze(1)

    def each(self, outputs: Tensor) -> Tensor:
        """Outputs [rows, length, dim] as padded texts, [n, longest, dim]."""
        return outputs.flatten(0, 1)[self.place]

    def means(self, outputs: Tensor) -> Tensor:
        """Each candidate's mean output, [batch, most candidates of a row, dim]."""
        numbers = torch.arange(max(self.counts), device=outputs.device)
        belongs = self.owner.unsqueeze(1) == numbers.unsqueeze(-1)
        weights = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
        return weights.to(outputs.dtype) @ outputs


class Tower:
    """Runs a BERT's own modules, so that gradients reach its weights, layer after layer with SDPA."""

    def __init__(self, backbone: Backbone) -> None:
        config = backbone.model.config
        if config.model_type != "bert":
            raise SystemExit(f"this benchmark reads the layers of a BERT, not of a {config.model_type}")
        self._embeddings: Any = backbone.embeddings()
        self._layers: list[Any] = list(backbone.layers())
        self._heads, self.dim = int(config.num_attention_heads), int(config.hidden_size)
        self.bias_shape = (len(self._layers), self._heads)

    def read(
        self,
        ids: Tensor,
        mask: Tensor,
        *,
        positions: Tensor | None = None,
        prefix: Prefix | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Outputs [batch, length, dim], and each layer's keys and values.

        Args:
            ids: [batch, length]; with a prefix of several contexts one row is read behind each of them.
            mask: which tokens see each other, [batch, 1 or length, length].
            prefix: contexts that all tokens see, too.
            bias: added to the logits of attention to the prefix, [layers, heads].
        """
        if positions is None:
            positions = torch.arange(ids.size(1), device=ids.device).expand_as(ids)
        hidden = self._embeddings(input_ids=ids, position_ids=positions, token_type_ids=torch.zeros_like(ids))
        if prefix is not None:
            mask = mask.expand(len(prefix.mask), ids.size(1), -1)
            mask = torch.cat([prefix.mask.unsqueeze(1).expand(-1, ids.size(1), -1), mask], dim=-1)
        kept = []
        with _kernels(ids.device):
            for number, layer in enumerate(self._layers):
                own = layer.attention.self
                query, key, value = (self._split(part(hidden)) for part in (own.query, own.key, own.value))
                kept.append((key, value))
                if prefix is None:
                    attended = F.scaled_dot_product_attention(query, key, value, mask.unsqueeze(1))
                else:
                    assert bias is not None
                    attended = _beside(query, key, value, mask.unsqueeze(1), prefix.kept[number], bias[number])
                hidden = layer.attention.output(attended.transpose(1, 2).flatten(2), hidden)
                hidden = layer.output(layer.intermediate(hidden), hidden)
        return hidden, kept

    def _split(self, vectors: Tensor) -> Tensor:
        """[batch, length, dim] -> [batch, heads, length, head dim]."""
        return vectors.unflatten(-1, (self._heads, -1)).transpose(1, 2)


def _beside(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, context: tuple[Tensor, Tensor], bias: Tensor
) -> Tensor:
    """Attention to a context's keys and to a text's own, whose batch may be 1: [batch, heads, length, head dim].

    The bias [heads] is a further dimension: 1 of queries, the bias of the context's keys, 0 of others. A mask that
    varies by head and has a gradient would be [batch, heads, length, keys].
    """
    keys, values = context
    batch, heads, _, dim = keys.shape
    scale, width = dim**-0.5, dim + WIDER
    of_context = (bias / scale).to(keys.dtype).view(1, heads, 1, 1).expand(*keys.shape[:3], 1)
    query = F.pad(F.pad(query.expand(batch, -1, -1, -1), (0, 1), value=1.0), (0, WIDER - 1))
    keys = F.pad(torch.cat([keys, of_context], dim=-1), (0, WIDER - 1))
    keys = torch.cat([keys, F.pad(key, (0, WIDER)).expand(batch, -1, -1, -1)], dim=2)
    values = torch.cat([values, value.expand(batch, -1, -1, -1)], dim=2)
    values = F.pad(values, (0, width - dim))  # kernels want values as wide as keys
    return F.scaled_dot_product_attention(query, keys, values, mask, scale=scale)[..., :dim]


@contextmanager
def _kernels(device: torch.device) -> Iterator[None]:
    """On a GPU the kernel that takes masks and has been longest in use, or plain products."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield
