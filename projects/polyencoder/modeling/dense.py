"""The `Dense` modules of a sentence encoder, or the hidden layer of a reranker: linear layers after pooling."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from polyencoder.config import DenseConfig

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
