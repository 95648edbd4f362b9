"""Dropout with four decisions from each random number.

torch's generator for the CPU works on one core, and its dropout asks it for a number for every value: in training a
sixth of the time. Decisions are arithmetic on whole numbers: torch has no fast code for truth values, to compare and to
convert which takes five times as long.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.tracing import is_traced

__all__ = ["CpuDropout", "decides", "draw", "dropout", "kept", "raised"]

LOWEST, VALUES = -(2**15), 2**16  # of the 16 bits that decide


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`, with `p` rounded to a multiple of 1 / 65,536."""
    if not decides(p) or not training or inplace:
        return F.dropout(input, p, training, inplace)
    return input * kept(draw(input.shape), p, input.dtype).mul_(raised(p))


def decides(p: float) -> bool:
    """Whether some values are dropped and others are not, with this `p`."""
    return 0 < round(p * VALUES) < VALUES


def draw(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """A random number for each decision: int16 of this shape."""
    count = torch.Size(shape).numel()
    numbers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return numbers.view(torch.int16)[:count].view(shape)


def kept(numbers: Tensor, p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """0 where the number, of `draw`, is among the lowest, else 1."""
    last = LOWEST + round(p * VALUES) - 1  # number that drops
    return numbers.clamp(last, last + 1).sub_(last).to(dtype)


def raised(p: float) -> float:
    """The factor of kept values, which preserves the mean: 1 / (1 - p)."""
    return VALUES / (VALUES - round(p * VALUES))


class CpuDropout(nn.Dropout):
    """`torch.nn.Dropout` by `dropout` on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or is_traced():
            return super().forward(input)
        return dropout(input, self.p, self.training, self.inplace)
