"""Weights in bfloat16 for inference, and whether a machine computes faster in it than in float32.

Autocast casts all weights anew in each call that learns nothing, which for one short text takes longer than its
products.
"""

from __future__ import annotations

import time
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Bf16Twin", "round_weights", "why_bf16_gains_nothing"]

_CPUINFO = Path("/proc/cpuinfo")
_WORTH_IT = 1.1  # times float32's rate, below which a warning says so
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them: two of x86, one of ARM


def why_bf16_gains_nothing(device: torch.device | str) -> str | None:
    """One line about a device that has no bfloat16 arithmetic of its own; None for one that has, or may have."""
    if torch.device(device).type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return None
        name = torch.cuda.get_device_name(device)
        return (
            f"{name} (compute capability {major}.{minor}) has no bfloat16 arithmetic, which came with 8.0; use float16"
        )
    try:
        flags = _CPUINFO.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux: nothing is known
        return None
    if has := _INSTRUCTIONS & set(flags):
        share = _bf16_share() if has == {"avx512_bf16"} else 2.0
        if share >= _WORTH_IT:
            return None
        return f"this processor's products in bfloat16 run at {share:.1f} times the rate of those in float32"
    return "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16 or ARM's bf16)"


@cache
def _bf16_share() -> float:
    """How many times float32's rate products in bfloat16 have. AVX-512's are twice as fast on some processors, and half
    as fast on others (Intel's fourth and fifth generation without AMX, as some virtual machines are)."""
    matrix = torch.ones(512, 512)
    seconds = {dtype: _least_seconds(matrix.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    return seconds[torch.float32] / seconds[torch.bfloat16]


def _least_seconds(matrix: Tensor) -> float:
    """Of a matrix's product with itself, the least of a few: what else the machine does only adds to it."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - start)
    return min(times)


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Have a model's parameters in another type, for good. Buffers stay: what is computed of them is exact."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)


class Bf16Twin:
    """A model with the same weights in bfloat16, made when it is first asked for and again when they have changed.

    A copy or a pickle of it is empty, and it is no part of a model's `state_dict`.
    """

    def __init__(self) -> None:
        self._versions: list[tuple[int, int]] = []
        self._twin: nn.Module | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Bf16Twin, ()

    def of(self, model: nn.Module) -> nn.Module:
        """The twin of `model`, for whatever learns nothing."""
        versions = [(parameter.data_ptr(), _version(parameter)) for parameter in model.parameters()]
        if self._twin is None or versions != self._versions:
            kept: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
            for parameter in model.parameters():
                kept[id(parameter)] = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
            self._twin, self._versions = deepcopy(model, kept), versions
        return self._twin.eval()

    def forget(self) -> None:
        """Give its memory back."""
        self._twin, self._versions = None, []


def _version(tensor: Tensor) -> int:
    """How often it was written to; nothing counts it for tensors that were made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
