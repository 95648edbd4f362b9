"""Fast dropout on a CPU: four decisions from each random number.

torch's CPU generator runs on one core, and its dropout draws a number for every value: a sixth of training time.
Decisions are integer arithmetic, since comparing and converting booleans takes five times as long in torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.tracing import is_traced

LOWEST, VALUES = -(2**15), 2**16  # of the 16 random bits


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`, with `p` rounded to a multiple of 1 / 65,536."""
    if not decides(p) or not training or inplace:
        return F.dropout(input, p, training, inplace)
    return input * kept(draw(input.shape), p, input.dtype).mul_(raised(p))


def decides(p: float) -> bool:
    """Whether `p`, rounded to 1 / 65,536, is neither 0 nor 1."""
    return 0 < round(p * VALUES) < VALUES


def draw(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Draws a random int16 for each decision."""
    count = torch.Size(shape).numel()
    numbers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return numbers.view(torch.int16)[:count].view(shape)


def kept(numbers: Tensor, p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask of kept values (1) from the numbers of `draw`: the lowest share `p` is dropped (0)."""
    last = LOWEST + round(p * VALUES) - 1  # the largest number that drops
    return numbers.clamp(last, last + 1).sub_(last).to(dtype)


def raised(p: float) -> float:
    """The factor of kept values, which preserves the mean: 1 / (1 - p)."""
    return VALUES / (VALUES - round(p * VALUES))


class CpuDropout(nn.Dropout):
    """`torch.nn.Dropout` with `dropout` on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or is_traced():
            return super().forward(input)
        return dropout(input, self.p, self.training, self.inplace)
