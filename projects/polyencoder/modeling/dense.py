"""The `Dense` modules of a sentence encoder, or the hidden layer of a reranker: linear layers after pooling."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from polyencoder.config import DenseConfig
from polyencoder.errors import ConfigError, first_line

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


def set_dense_weights(dense: nn.Sequential, files: Sequence[str | os.PathLike[str]]) -> None:
    """Reads the weights of each linear layer from a file that sentence-transformers wrote.

    Raises:
        ConfigError: a file cannot be read, or its weights are not the layer's.
    """
    linears: list[Any] = [module for module in dense if isinstance(module, nn.Linear)]
    for linear, file in zip(linears, files, strict=True):
        try:
            weights: dict[str, Tensor] = load_file(os.fspath(file))
            linear.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
        except Exception as error:  # safetensors and torch raise many types
            raise ConfigError(f"{os.fspath(file)}: no weights of this Dense module ({first_line(error)})") from None
        if not all(bool(torch.isfinite(parameter).all()) for parameter in linear.parameters()):
            raise ConfigError(f"{os.fspath(file)}: weights are infinite or not a number")
