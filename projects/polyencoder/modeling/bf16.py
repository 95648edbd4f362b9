"""Whether a machine computes faster in bfloat16 than in float32."""

from __future__ import annotations

from pathlib import Path

import torch

__all__ = ["why_bf16_gains_nothing"]

_CPUINFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them: two of x86, one of ARM


def why_bf16_gains_nothing(device: torch.device | str) -> str | None:
    """One line about a device that has no bfloat16 arithmetic of its own; None for one that has, or may have."""
    if torch.device(device).type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return None
        name = torch.cuda.get_device_name(device)
        return (
            f"{name} (compute capability {major}.{minor}) has no bfloat16 arithmetic, which came with 8.0; use --fp16"
        )
    try:
        flags = _CPUINFO.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux: nothing is known
        return None
    if _INSTRUCTIONS & set(flags):
        return None
    return "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16 or ARM's bf16)"
