"""Compares a model's floating-point rate with the machine's rate of matrix products.

Speeds of different machines are comparable only as a share of each machine's own rate: that of matrix products of the
model's shapes, in the same precision, measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.common import synchronize
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.convert import ConveRT
from polyencoder.modeling.encoder_config import backbone_config

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
    """The products with weights in one layer of an encoder, for `tokens` tokens.

    `config` is that of a Hugging Face BERT or its kin, as `RankerConfig.backbone` has it, or of a ConveRT (`convert`).
    """
    dim, inner = config["hidden_size"], config["intermediate_size"]
    if "attention_limits" in config:
        size = config["attention_heads"] * config["attention_size"]
        attention = [Shape(tokens, dim, 3 * size), Shape(tokens, size, dim)]
        return [*attention, Shape(tokens, dim, inner), Shape(tokens, inner, dim)]
    return [Shape(tokens, dim, dim)] * 4 + [Shape(tokens, dim, inner), Shape(tokens, inner, dim)]


def encoder_flops(config: Mapping[str, Any], lengths: Sequence[int], *, training: bool = False) -> float:
    """Floating-point operations for sequences of these lengths, without padding: products with weights and attention.

    Training takes three times those of the forward pass: the gradients of inputs and of weights are as many each.
    """
    layers, width = config.get("num_hidden_layers", 0), config["hidden_size"]
    if "attention_limits" in config:
        layers = len(config["attention_limits"])
        width = config["attention_heads"] * config["attention_size"]
    linear = sum(shape.flops for shape in products(config, tokens=sum(lengths)))
    attention = sum(4 * length * length * width for length in lengths)  # queries with keys, and weights with values
    return float((3 if training else 1) * (layers * (linear + attention) + _convert_head_flops(config, lengths)))


def _convert_head_flops(config: Mapping[str, Any], lengths: Sequence[int]) -> int:
    """Operations of ConveRT's layers after the blocks: the reduction, and one feed-forward 2 with its skip per text."""
    if "attention_limits" not in config:
        return 0
    dim, heads, size = config["hidden_size"], config["reduction_heads"], config["reduction_size"]
    reduction = [Shape(sum(lengths), dim, 2 * heads * size), *(Shape(n, size * heads, n) for n in lengths)]
    sizes = (heads * dim, *config["head_sizes"], config["output_size"])
    head = [Shape(len(lengths), *pair) for pair in (*pairwise(sizes), (sizes[0], sizes[-1]))]
    return sum(shape.flops for shape in (*reduction, *head))


def product_rate(
    shapes: Sequence[Shape],
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Floating-point operations a second of these products alone, one after the other: the median of several rounds."""
    operands = [
        (torch.randn(s.m, s.k, device=device).to(dtype), torch.randn(s.k, s.n, device=device).to(dtype)) for s in shapes
    ]
    seconds = []
    for _ in range(REPEATS + 1):
        synchronize()
        start = clock()
        for left, right in operands:
            torch.mm(left, right)
        synchronize()
        seconds.append(clock() - start)
    return sum(shape.flops for shape in shapes) / statistics.median(seconds[1:])


class Encoded:
    """The sequences that passed through the encoders of a model."""

    def __init__(self) -> None:
        self.calls: list[tuple[Mapping[str, Any], list[int]]] = []

    def share(
        self,
        seconds: float,
        *,
        dtype: torch.dtype,
        training: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> float:
        """The rate of their floating-point operations, without padding, in `seconds`, as a share of the product rate.

        The product rate is measured with as many tokens as a forward pass has, on the CPU, in this type and with the
        clock that measured `seconds`.
        """
        flops = sum(encoder_flops(config, lengths, training=training) for config, lengths in self.calls)
        config, lengths = max(self.calls, key=lambda call: sum(call[1]))
        return flops / seconds / product_rate(products(config, tokens=sum(lengths)), dtype=dtype, clock=clock)


@contextmanager
def encoded(model: nn.Module) -> Iterator[Encoded]:
    """Record the lengths of all sequences that pass through the encoders of a model."""
    seen, hooks = Encoded(), []

    def note(config: Mapping[str, Any]) -> Callable[..., None]:
        return lambda module, inputs: seen.calls.append((config, inputs[0].mask.sum(1).tolist()))

    for module in list(model.modules()):
        if isinstance(module, Backbone):
            hooks.append(module.register_forward_pre_hook(note(backbone_config(module.model))))
        elif isinstance(module, ConveRT):
            hooks.append(module.encoder.register_forward_pre_hook(note(asdict(module.sizes))))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
