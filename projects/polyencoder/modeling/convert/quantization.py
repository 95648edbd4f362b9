"""Quantization-aware training: embeddings rounded to 8 bits, other weights to 16, trained in 32 (Section 2.1).

What learns are shadow copies in float32. A forward pass sees them as they will be kept, and gradients go straight
through the rounding to them (Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons", 2013), as
in Micikevicius et al., "Mixed Precision Training" (2018). Layer normalisation, softmax and L2 normalisation compute in
float32.

The 16 bits are float16's, the paper's: its 11 significant bits round weights, none of which is near its largest number,
65,504, eight times as finely as bfloat16's 8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.rounding import run_with

__all__ = ["QuantizationAwareEmbedding", "QuantizedEmbedding", "Range", "round_parameters", "with_rounded_parameters"]

HIGHEST = 255  # of the codes
ROOM = 0.1  # of the range of values, above and below it
LEAST_ROOM = 0.01

T = TypeVar("T")


class Range(NamedTuple):
    """The values of the codes 0 to 255 of a table: (code - zero_point) * scale.

    scale: float32, one number. zero_point: uint8, the code of 0.
    """

    scale: Tensor
    zero_point: Tensor

    @classmethod
    def around(cls, values: Tensor) -> Range:
        """One that holds all values, and 0, with "room for growth above and below - 10% of the range, or 0.01"."""
        lowest, highest = values.detach().float().aminmax()
        room = (ROOM * (highest - lowest)).clamp(min=LEAST_ROOM)
        lowest, highest = (lowest - room).clamp(max=0), (highest + room).clamp(min=0)
        scale = (highest - lowest) / HIGHEST
        return cls(scale, (-lowest / scale).round().to(torch.uint8))

    def codes(self, values: Tensor) -> Tensor:
        """uint8, the nearest to each value; that of the nearer end where it is outside of the range."""
        return ((values / self.scale).round() + self.zero_point.float()).clamp(0, HIGHEST).to(torch.uint8)

    def values(self, codes: Tensor) -> Tensor:
        """float32: at most half of `scale` from what the codes were made of, if that was within the range."""
        return (codes.float() - self.zero_point.float()) * self.scale


class QuantizationAwareEmbedding(nn.Embedding):
    """A table in float32 whose rows are looked up rounded to 8 bits.

    The range is kept until `follow`: it lags behind the weights. Gradients therefore go straight through to
    values outside of it, too, which the next range will hold.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, rows: int, dim: int, **where: Any) -> None:
        super().__init__(rows, dim, **where)
        self.register_buffer("scale", torch.ones((), **where))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.uint8, **where))

    @property
    def range(self) -> Range:
        return Range(self.scale, self.zero_point)

    @torch.no_grad()
    def follow(self) -> None:
        """Have the range that the table has now."""
        new = Range.around(self.weight)
        self.scale.copy_(new.scale)
        self.zero_point.copy_(new.zero_point)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., dim]. Only the rows that are asked for are rounded."""
        rows: Tensor = _Quantized.apply(F.embedding(ids, self.weight), *self.range)
        return rows

    @torch.no_grad()
    def quantized(self) -> QuantizedEmbedding:
        """The table in 8 bits, for inference."""
        table = QuantizedEmbedding(*self.weight.shape, device="meta")
        table.weight, table.scale, table.zero_point = self.range.codes(self.weight), *(t.clone() for t in self.range)
        return table.train(self.training)


class QuantizedEmbedding(nn.Module):
    """A table in 8 bits with one range, whose rows are looked up: [...] -> [..., dim] in float32."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, rows: int, dim: int, **where: Any) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(rows, dim, dtype=torch.uint8, **where))
        self.register_buffer("scale", torch.ones((), **where))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.uint8, **where))

    @property
    def embedding_dim(self) -> int:
        return self.weight.size(1)

    def forward(self, ids: Tensor) -> Tensor:
        return Range(self.scale, self.zero_point).values(self.weight[ids])

    @torch.no_grad()
    def shadow(self) -> QuantizationAwareEmbedding:
        """The table in float32, to train it further within its range."""
        table = QuantizationAwareEmbedding(*self.weight.shape, device=self.weight.device)
        table.weight.copy_(Range(self.scale, self.zero_point).values(self.weight))
        table.scale.copy_(self.scale)
        table.zero_point.copy_(self.zero_point)
        return table.train(self.training)


class _Quantized(torch.autograd.Function):
    """Values rounded to 8 bits; the gradient is that of the values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        kept = Range(scale, zero_point)
        return kept.values(kept.codes(values))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


class _Rounded(torch.autograd.Function):
    """Values rounded to 16 bits; the gradient is that of the values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.half().to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def with_rounded_parameters(model: nn.Module, method: Callable[[Any], T], argument: Any) -> T:
    """Calls a method of a model with all parameters but embeddings rounded to 16 bits.

    The parameters themselves are unchanged, and get the gradients.
    """
    rounded = {name: _Rounded.apply(parameter) for name, parameter in _others(model).items()}
    return run_with(model, rounded, method, argument)


@torch.no_grad()
def round_parameters(model: nn.Module) -> None:
    """Round the parameters of a model, but those of embeddings, to 16 bits, for good."""
    for parameter in _others(model).values():
        parameter.copy_(parameter.half())


def _others(model: nn.Module) -> dict[str, nn.Parameter]:
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in tables}
