"""Quantization-aware training: embeddings rounded to 8 bits, other weights to 16, trained in 32 (Section 2.1).

The trained weights are float32 copies. The forward pass quantizes them as they will be stored; gradients pass straight
through the rounding (Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons", 2013), as
in Micikevicius et al., "Mixed Precision Training" (2018). Layer normalisation, softmax and L2 normalisation compute in
float32.

The 16 bits are float16, as in the paper: 11 significant bits, to bfloat16's 8, and weights stay far below its largest
number, 65,504.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.rounding import run_with

MAX_CODE = 255
MARGIN = 0.1  # added above and below, as a share of the range of values
MIN_MARGIN = 0.01

T = TypeVar("T")


class Range(NamedTuple):
    """An affine quantization range: codes 0 to 255 (uint8) stand for (code - zero_point) * scale (float32)."""

    scale: Tensor
    zero_point: Tensor

    @classmethod
    def from_values(cls, values: Tensor) -> Range:
        """The range of all values and 0, with "room for growth above and below - 10% of the range, or 0.01"."""
        lowest, highest = values.detach().float().aminmax()
        margin = (MARGIN * (highest - lowest)).clamp(min=MIN_MARGIN)
        lowest, highest = (lowest - margin).clamp(max=0), (highest + margin).clamp(min=0)
        scale = (highest - lowest) / MAX_CODE
        return cls(scale, (-lowest / scale).round().to(torch.uint8))

    def quantize(self, values: Tensor) -> Tensor:
        """Quantizes to uint8: the nearest code, clamped to the range."""
        return ((values / self.scale).round() + self.zero_point.float()).clamp(0, MAX_CODE).to(torch.uint8)

    def dequantize(self, codes: Tensor) -> Tensor:
        """Dequantizes to float32; the error is at most scale / 2 within the range."""
        return (codes.float() - self.zero_point.float()) * self.scale


class QuantizationAwareEmbedding(nn.Embedding):
    """A float32 embedding table whose rows are fake-quantized to 8 bits.

    The range lags behind the weights until `update_range`. Gradients therefore also pass to values outside of it,
    which the next range will hold.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, rows: int, dim: int, **options: Any) -> None:
        super().__init__(rows, dim, **options)
        self.register_buffer("scale", torch.ones((), **options))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.uint8, **options))

    @property
    def range(self) -> Range:
        return Range(self.scale, self.zero_point)

    @torch.no_grad()
    def update_range(self) -> None:
        """Sets the range to the range of the current weights."""
        current = Range.from_values(self.weight)
        self.scale.copy_(current.scale)
        self.zero_point.copy_(current.zero_point)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., dim]. Quantizes only the rows it looks up."""
        codec = self.range
        return _StraightThrough.apply(
            F.embedding(ids, self.weight), lambda rows: codec.dequantize(codec.quantize(rows))
        )

    @torch.no_grad()
    def quantize(self) -> QuantizedEmbedding:
        """The table in 8 bits, for inference."""
        table = QuantizedEmbedding(*self.weight.shape, device="meta")
        table.weight, table.scale, table.zero_point = self.range.quantize(self.weight), *(t.clone() for t in self.range)
        return table.train(self.training)


class QuantizedEmbedding(nn.Module):
    """An 8-bit embedding table with one range: [...] -> [..., dim] in float32."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, rows: int, dim: int, **options: Any) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(rows, dim, dtype=torch.uint8, **options))
        self.register_buffer("scale", torch.ones((), **options))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.uint8, **options))

    @property
    def embedding_dim(self) -> int:
        return self.weight.size(1)

    def forward(self, ids: Tensor) -> Tensor:
        return Range(self.scale, self.zero_point).dequantize(self.weight[ids])

    @torch.no_grad()
    def dequantize(self) -> QuantizationAwareEmbedding:
        """The table in float32, for further training."""
        table = QuantizationAwareEmbedding(*self.weight.shape, device=self.weight.device)
        table.weight.copy_(Range(self.scale, self.zero_point).dequantize(self.weight))
        table.scale.copy_(self.scale)
        table.zero_point.copy_(self.zero_point)
        return table.train(self.training)


class _StraightThrough(torch.autograd.Function):
    """Fake quantization by any function, whose gradient passes through unchanged."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, quantize: Callable[[Tensor], Tensor]) -> Tensor:
        return quantize(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _round(values: Tensor) -> Tensor:
    return values.half().to(values.dtype)


def call_with_rounded_parameters(model: nn.Module, method: Callable[[Any], T], argument: Any) -> T:
    """Calls a model's method with all parameters but embeddings rounded to float16; gradients are the parameters'."""
    rounded = {name: _StraightThrough.apply(parameter, _round) for name, parameter in _select_rounded(model).items()}
    return run_with(model, rounded, method, argument)


@torch.no_grad()
def round_parameters(model: nn.Module) -> None:
    """Rounds a model's parameters, except embeddings, to float16, permanently."""
    for parameter in _select_rounded(model).values():
        parameter.copy_(parameter.half())


def _select_rounded(model: nn.Module) -> dict[str, nn.Parameter]:
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in tables}
