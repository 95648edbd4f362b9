"""Detects machines that compute no faster in bfloat16 than in float32."""

from __future__ import annotations

import timeit
from functools import cache
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_MIN_SPEEDUP = 1.1  # over float32, below which to warn
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them: two of x86, one of ARM


def why_bf16_gains_nothing(device: torch.device | str) -> str | None:
    """Why bfloat16 is no faster on this device; None if it is, or may be."""
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
        speedup = _bf16_speedup() if has == {"avx512_bf16"} else 2.0
        if speedup >= _MIN_SPEEDUP:
            return None
        return f"this processor multiplies bfloat16 matrices at {speedup:.1f} times the rate of float32 ones"
    return "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16 or ARM's bf16)"


@cache
def _bf16_speedup() -> float:
    """The measured speed of matrix products in bfloat16, relative to float32.

    AVX-512's are twice as fast on some processors, and half as fast on others (Intel's fourth and fifth generation
    without AMX, as some virtual machines are).
    """
    full, half = torch.ones(512, 512), torch.ones(512, 512, dtype=torch.bfloat16)
    # the minimum of a few, as other load only adds time
    seconds = [min(timeit.repeat(lambda: one @ one, number=1, repeat=6)) for one in (full, half)]  # noqa: B023
    return seconds[0] / seconds[1]
