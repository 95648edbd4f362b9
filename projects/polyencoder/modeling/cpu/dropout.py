"""Dropout with four decisions from each random number.

torch's generator for the CPU works on one core, and its dropout asks it for a number for every value: in training a
sixth of the time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.tracing import is_traced

__all__ = ["CpuDropout", "dropout"]

LOWEST, VALUES = -(2**15), 2**16  # of the 16 bits that decide


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`, with `p` rounded to a multiple of 1 / 65,536."""
    dropped = round(p * VALUES)
    if not 0 < dropped < VALUES or not training or inplace:
        return F.dropout(input, p, training, inplace)
    numbers = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = numbers.view(torch.int16)[: input.numel()].view(input.shape) >= LOWEST + dropped
    return input * kept.to(input.dtype).mul_(VALUES / (VALUES - dropped))


class CpuDropout(nn.Dropout):
    """`torch.nn.Dropout` by `dropout` on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or is_traced():
            return super().forward(input)
        return dropout(input, self.p, self.training, self.inplace)
