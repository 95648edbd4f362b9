"""How near a model comes to what the machine can multiply: its floating-point operations, and the rate of products.

Speeds compare with other machines only as a share of the machine's own rate: that of matrix products of the model's
shapes, in the same precision, measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.common import synchronize

__all__ = ["Shape", "encoder_flops", "product_rate", "products"]

REPEATS = 7


class Shape(NamedTuple):
    """The product of [m, k] and [k, n]."""

    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n


def products(config: Mapping[str, Any], *, tokens: int) -> list[Shape]:
    """The products with weights in one layer of an encoder, for so many tokens.

    `config` is that of a Hugging Face BERT or its kin, as `RankerConfig.backbone` has it.
    """
    dim, inner = config["hidden_size"], config["intermediate_size"]
    return [Shape(tokens, dim, dim)] * 4 + [Shape(tokens, dim, inner), Shape(tokens, inner, dim)]


def encoder_flops(config: Mapping[str, Any], lengths: Sequence[int], *, training: bool = False) -> float:
    """Floating-point operations for sequences of these lengths, without padding: products with weights and attention.

    Training takes three times those of the forward pass: the gradients of inputs and of weights are as many each.
    """
    layers, dim = config["num_hidden_layers"], config["hidden_size"]
    linear = sum(shape.flops for shape in products(config, tokens=sum(lengths)))
    attention = sum(4 * length * length * dim for length in lengths)  # queries with keys, and weights with values
    return float((3 if training else 1) * layers * (linear + attention))


def product_rate(shapes: Sequence[Shape], *, dtype: torch.dtype, device: str | torch.device = "cpu") -> float:
    """Floating-point operations a second of these products alone, one after the other: the median of several rounds."""
    operands = [
        (torch.randn(s.m, s.k, device=device).to(dtype), torch.randn(s.k, s.n, device=device).to(dtype)) for s in shapes
    ]
    seconds = []
    for _ in range(REPEATS + 1):
        synchronize()
        start = time.perf_counter()
        for left, right in operands:
            torch.mm(left, right)
        synchronize()
        seconds.append(time.perf_counter() - start)
    return sum(shape.flops for shape in shapes) / statistics.median(seconds[1:])
