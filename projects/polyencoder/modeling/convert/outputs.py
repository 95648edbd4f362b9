"""From token vectors to scores: the reduction to one vector, feed-forward 2, and the scale of cosines (Section 2.1)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.config import ConvertConfig
from polyencoder.modeling.convert.blocks import activate, build_layer_norm
from polyencoder.modeling.convert.rows import PackedRows


class Reduction(nn.Module):
    """Self-attended vectors summed, and divided by the square root of their number: both fused (note 8).

    Each head has its own queries and keys, but no values: it attends over the inputs themselves. So the sum over tokens
    is one weighted sum of inputs with summed weights, and the attended sequence is never computed. From PolyAI's
    graphs: no biases, scores are not divided by the square root of their dimension, and padding is masked both as key
    and as query.
    """

    def __init__(self, dim: int, *, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys = nn.Linear(dim, 2 * heads * size, bias=False)
        for part in self.queries_keys.weight.chunk(2 * heads):
            nn.init.xavier_uniform_(part)

    def forward(self, inputs: Tensor, rows: PackedRows) -> Tensor:
        """[tokens, dim] -> [batch, heads * dim]; 0 for a text without tokens."""
        return rows.restore_order(rows.apply_each(self._reduce, inputs, self.queries_keys(inputs)))

    def _reduce(self, inputs: Tensor, projected: Tensor, rows: PackedRows) -> Tensor:
        padded, mask = rows.put(projected), rows.mask
        queries, keys = padded.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [b, heads, n, size]
        scores = queries @ keys.transpose(2, 3)  # [b, heads, n, n]
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = (torch.softmax(scores, dim=-1) * mask[:, None, :, None]).sum(2)  # [b, heads, n]
        weights = weights * mask.sum(1).clamp(min=1).rsqrt()[:, None, None]
        return (weights.to(inputs.dtype) @ rows.put(inputs)).flatten(1)


class FeedForward(nn.Module):
    """Feed-forward 2: hidden layers with skip connections and layer normalisation, a linear layer, then length 1.

    From PolyAI's graphs: the input is normalised; a hidden layer is a matrix without bias, the activation, a layer
    normalisation; a projection of the raw input, `skip`, shared by contexts, extra contexts and responses, is added to
    the output, which is normalised. Hidden layers with as many outputs as inputs also have a skip connection: all in
    the paper, none in the graphs, whose layers differ in size.
    """

    def __init__(self, input_size: int, config: ConvertConfig) -> None:
        super().__init__()
        sizes = (input_size, *config.head_sizes)
        self.input_norm = build_layer_norm(input_size)
        self.layers = nn.ModuleList(nn.Linear(before, after, bias=False) for before, after in pairwise(sizes))
        self.norms = nn.ModuleList(build_layer_norm(size) for size in config.head_sizes)
        self.output = nn.Linear(sizes[-1], config.output_size, bias=False)
        self.output_norm = build_layer_norm(config.output_size)
        self.activation, self.skips = config.activation, config.skips
        for layer in (*self.layers, self.output):
            nn.init.orthogonal_(layer.weight)

    def forward(self, inputs: Tensor, skip: nn.Module | None) -> Tensor:
        """[batch, input_size] -> [batch, output_size], of length 1, in float32."""
        inputs = inputs.to(self.output.weight.dtype)
        hidden = self.input_norm(inputs)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            output = activate(layer(hidden), self.activation)
            hidden = norm(hidden + output if self.skips and output.shape == hidden.shape else output)
        outputs = self.output(hidden)
        if skip is not None:
            outputs = outputs + skip(inputs)
        return F.normalize(self.output_norm(outputs).float(), dim=-1, eps=1e-6)


class AnnealedScale(nn.Module):
    """Scale of cosines, annealed from 1 to the root of the dimension (Section 2.1) by a saved count of batches."""

    batches: Tensor

    def __init__(self, dim: int, *, over: int) -> None:
        super().__init__()
        self.highest, self.over = math.sqrt(dim), over
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        """The current scale, a scalar."""
        progress = (self.batches / self.over).clamp(max=1.0) if self.over else torch.ones_like(self.batches)
        return 1 + (self.highest - 1) * progress

    def explain_low(self, batches: int) -> str | None:
        """Why `batches` more batches are too few for the highest scale, so that training is slow; None if enough."""
        total = int(self.batches) + batches
        if total >= self.over:
            return None
        scale = 1 + (self.highest - 1) * total / self.over
        return (
            f"the scale of cosines rises over {self.over} batches, but the run ends after {total}, with a scale of "
            f"{scale:.1f} instead of {self.highest:.1f}: set a smaller scale_batches for a new model"
        )

    def advance(self) -> None:
        """Counts a batch."""
        self.batches += 1
