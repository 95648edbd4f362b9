"""From one vector for each token to one for the text: self-attention and square-root-of-N reduction, fused (note 8)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyencoder.modeling.convert.rows import Rows

__all__ = ["Reduction"]


class Reduction(nn.Module):
    """Self-attended vectors summed, and divided by the square root of their number.

    Each head attends with queries and keys of its own, and without values: what it gives each token is a weighted sum
    of the inputs themselves. So the sum over the tokens is one weighted sum with summed weights, and the attended
    sequence is never made. From PolyAI's graphs: no biases, scores are not divided by the square root of their
    dimension, and padding takes part neither as key nor as query.
    """

    def __init__(self, dim: int, *, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys = nn.Linear(dim, 2 * heads * size, bias=False)
        for part in self.queries_keys.weight.chunk(2 * heads):
            nn.init.xavier_uniform_(part)

    def forward(self, inputs: Tensor, rows: Rows) -> Tensor:
        """[tokens, dim] -> [batch, heads * dim]; 0 for a text without tokens."""
        return rows.in_order(rows.each(self._reduced, inputs, self.queries_keys(inputs)))

    def _reduced(self, inputs: Tensor, projected: Tensor, rows: Rows) -> Tensor:
        padded, mask = rows.put(projected), rows.mask
        queries, keys = padded.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [b, heads, n, size]
        scores = queries @ keys.transpose(2, 3)  # [b, heads, n, n]
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = (torch.softmax(scores, dim=-1) * mask[:, None, :, None]).sum(2)  # [b, heads, n]
        weights = weights * mask.sum(1).clamp(min=1).rsqrt()[:, None, None]
        return (weights.to(inputs.dtype) @ rows.put(inputs)).flatten(1)
