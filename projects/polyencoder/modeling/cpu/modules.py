"""Replaces an encoder's linear layers and dropout by faster ones on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.cpu.products import CpuLinear, is_onednn_faster
from polyencoder.modeling.tracing import is_traced

LOWEST, VALUES = -(2**15), 2**16  # of the 16 random bits


def apply_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`, with `p` rounded to a multiple of 1 / 65,536: four decisions a random number.

    torch's generator runs on one core, and draws a number for every value: a sixth of training time. Decisions are
    integer arithmetic, as comparing and converting booleans takes five times as long in torch.
    """
    if not is_random(p) or not training or inplace:
        return F.dropout(input, p, training, inplace)
    return input * compute_keep_mask(draw(input.shape), p, input.dtype).mul_(compute_factor(p))


def is_random(p: float) -> bool:
    """Whether `p`, rounded to 1 / 65,536, is neither 0 nor 1."""
    return 0 < round(p * VALUES) < VALUES


def draw(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Draws a random int16 for each decision."""
    count = torch.Size(shape).numel()
    numbers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return numbers.view(torch.int16)[:count].view(shape)


def compute_keep_mask(numbers: Tensor, p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask of kept values (1) from the numbers of `draw`: the lowest share `p` is dropped (0)."""
    last = LOWEST + round(p * VALUES) - 1  # the largest number that drops
    return numbers.clamp(last, last + 1).sub_(last).to(dtype)


def compute_factor(p: float) -> float:
    """The factor of kept values, which preserves the mean: 1 / (1 - p)."""
    return VALUES / (VALUES - round(p * VALUES))


class CpuDropout(nn.Dropout):
    """`torch.nn.Dropout` with `apply_dropout` on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or is_traced():
            return super().forward(input)
        return apply_dropout(input, self.p, self.training, self.inplace)


def replace_layers(model: nn.Module) -> None:
    """Replaces linear layers and dropout in `model` by equivalent ones that are faster on a CPU.

    In place and permanently: they share the parameters, under the same names, and behave as torch's on other devices
    and in graphs. Linear layers are replaced on processors on which oneDNN is faster than MKL.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                parent.register_module(name, CpuDropout(child.p, child.inplace).train(child.training))
            elif type(child) is nn.Linear and is_onednn_faster():
                parent.register_module(name, _convert_linear(child))


def _convert_linear(layer: nn.Linear) -> CpuLinear:
    ours = CpuLinear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    ours.weight, ours.bias = layer.weight, layer.bias
    return ours.train(layer.training)
