"""Multi-head attention with projections in a poly-encoder, as in ParlAI; the paper has none."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyencoder.errors import ConfigError
from polyencoder.scoring import ContextEncoding, Keys


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True, 0 elsewhere; all 0, not NaN, if fully masked."""
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0)


class _Projections(nn.Module):
    """The four projections of all heads, initialised to the identity: near a model without them."""

    def __init__(self, dim: int, heads: int, *, argument: str) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ConfigError(
                f"{argument} is {heads}; the encoder's dimension, {dim}, must be a multiple of it", argument=argument
            )
        self.heads, self.size = heads, dim // heads
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)

    def split_heads(self, vectors: Tensor) -> Tensor:
        """[..., dim] -> [..., heads, dim / heads]."""
        return vectors.unflatten(-1, (self.heads, self.size))


class CodesAttention(_Projections):
    """Trained codes as the queries of several heads over the outputs of a transformer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, argument="codes_attention_heads")

    def forward(self, codes: Tensor, outputs: Tensor, mask: Tensor) -> Tensor:
        """Codes [m, dim], outputs [batch, length, dim] and mask [batch, length] -> [batch, m, dim]."""
        values = self.split_heads(self.value(outputs)).transpose(1, 2)  # [batch, heads, length, size]
        return self.output((self.compute_weights(codes, outputs, mask) @ values).transpose(1, 2).flatten(2))

    def compute_weights(self, codes: Tensor, outputs: Tensor, mask: Tensor) -> Tensor:
        """The weight of each output for each code: [batch, heads, m, length]."""
        queries = self.split_heads(self.query(codes)).transpose(0, 1) / math.sqrt(self.size)  # [heads, m, size]
        keys = self.split_heads(self.key(outputs)).permute(0, 2, 3, 1)  # [batch, heads, size, length]
        return masked_softmax(queries @ keys, mask[:, None, None])


class CandidateAttention(_Projections):
    """The context's part of a candidate's attention over the codes with several heads (see `scoring.context.Keys`)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, argument="poly_attention_heads")

    def forward(self, codes: ContextEncoding) -> ContextEncoding:
        """[batch, m, dim] -> values and keys, [batch, m * heads, dim]."""
        keys = self.split_heads(self.key(codes.vectors)) / math.sqrt(self.size)  # [batch, m, heads, size]
        values = self.split_heads(self.value(codes.vectors))
        biases = torch.einsum("bmhe,he->bmh", keys, self.split_heads(self.query.bias))
        keys = torch.einsum("bmhe,hed->bmhd", keys, self.query.weight.unflatten(0, (self.heads, self.size)))
        values = torch.einsum("bmhe,dhe->bmhd", values, self.split_heads(self.output.weight))
        values = values + self.output.bias / self.heads

        mask = None if codes.mask is None else codes.mask.repeat_interleave(self.heads, dim=1)
        return ContextEncoding(values.flatten(1, 2), mask, Keys(keys.flatten(1, 2), biases.flatten(1), self.heads))
