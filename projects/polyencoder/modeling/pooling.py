"""Pooling, the paper's red(): reduces a transformer's outputs to one vector (Section 4.2 and Table 7), and the
linear layers behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyencoder.config import DenseConfig, Reduction


def reduce(outputs: Tensor, mask: Tensor, *, reduction: Reduction, first_m: int = 64, skip: int = 0) -> Tensor:
    """One vector for each sequence: [batch, length, dim] and mask [batch, length] -> [batch, dim].

    `first` takes the output of the start token, `mean` and `max` are over all tokens, `mean_first` averages the first
    `first_m` tokens, `mean_except_first` all but the start token: the paper's "all of them except the first one".
    `last` takes the output of the last token, `weighted_mean` weights outputs by their positions, from 1 (Muennighoff,
    "SGPT", 2022). The first `skip` tokens, a prompt's, are left out. Padding never counts; the result of an
    empty sequence is 0.
    """
    skip = max(skip, 1) if reduction == "mean_except_first" else skip
    outputs, mask = outputs[:, skip:], mask[:, skip:]
    if reduction == "first":
        return outputs[:, 0].masked_fill(~mask[:, :1], 0)
    if reduction == "max":
        best = outputs.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        return best.masked_fill(~mask[:, :1], 0)
    if reduction == "last":
        last = (mask.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, outputs.size(2))
        return outputs.gather(1, last).squeeze(1).masked_fill(~mask[:, :1], 0)
    if reduction == "mean_first":
        outputs, mask = outputs[:, :first_m], mask[:, :first_m]
    weights = mask.to(outputs.dtype)
    if reduction == "weighted_mean":
        weights = weights * torch.arange(skip + 1, skip + 1 + mask.size(1), device=mask.device)
    # A product of matrices: as an einsum it takes 1.5 to 3 times as long, and 2 to 12 times in an ONNX graph
    total = (weights[:, None] @ outputs)[:, 0]
    return total / weights.sum(1, keepdim=True).clamp(min=1)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}
"""By the names of `DenseConfig`: torch's, in lower case."""


def build_dense(dim: int, layers: Sequence[DenseConfig]) -> nn.Sequential | None:
    """Builds the layers with random weights: [n, dim] -> [n, size of the last]; None without any."""
    modules: list[nn.Module] = []
    for layer in layers:
        modules += [nn.Linear(dim, layer.size, bias=layer.bias), ACTIVATIONS[layer.activation]()]
        modules += [] if layer.norm_eps is None else [nn.LayerNorm(layer.size, eps=layer.norm_eps)]
        dim = layer.size
    return nn.Sequential(*modules) if modules else None
