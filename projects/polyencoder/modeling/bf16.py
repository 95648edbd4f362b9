"""Whether a machine computes faster in bfloat16 than in float32."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["why_bf16_gains_nothing"]

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
    """The speed of matrix products in bfloat16, relative to float32.

    AVX-512's are twice as fast on some processors, and half as fast on others (Intel's fourth and fifth generation
    without AMX, as some virtual machines are).
    """
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
