"""Mixed precision: float32, autocast to bfloat16, or autocast to float16 with a scaled loss."""

from __future__ import annotations

import timeit
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.settings.training import PrecisionName


class Precision:
    """Mixed precision on a device; weights, gradients and optimizer state stay in float32.

    loss_scale: None: dynamic with float16, else 1. ConfigError: float16 without a GPU.
    """

    def __init__(self, name: PrecisionName, device: torch.device, *, loss_scale: float | None = None) -> None:
        if name == "float16" and device.type != "cuda":
            raise ConfigError("float16 needs a GPU; on a CPU bfloat16 may be faster than float32", argument="precision")
        self.name, self._device, self._fixed = name, device, loss_scale
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "float16" and loss_scale is None)

    @property
    def warning(self) -> str | None:
        """Why this precision is no faster on this device; None if it is."""
        return explain_no_bf16_gain(self._device) if self.name == "bfloat16" else None

    @property
    def scales(self) -> bool:
        """Whether the loss scale is dynamic, so that steps with overflows are skipped."""
        return self._scaler.is_enabled()

    def autocast(self) -> torch.autocast:
        dtype = torch.float16 if self.name == "float16" else torch.bfloat16
        return torch.autocast(self._device.type, dtype, enabled=self.name != "float32")

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss if self._fixed is None else loss * self._fixed).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscales the gradients, before they are clipped."""
        if self.scales:
            self._scaler.unscale_(optimizer)
        elif self._fixed is not None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_div_(gradients, self._fixed)

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step; with a dynamic scale, overflows skip it and lower the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self.scales:
            self._scaler.load_state_dict(state)


_CPUINFO = Path("/proc/cpuinfo")
_MIN_SPEEDUP = 1.1  # over float32, below which to warn
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them: two of x86, one of ARM


def explain_no_bf16_gain(device: torch.device | str) -> str | None:
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
        speedup = _measure_bf16_speedup() if has == {"avx512_bf16"} else 2.0
        if speedup >= _MIN_SPEEDUP:
            return None
        return f"this processor multiplies bfloat16 matrices at {speedup:.1f} times the rate of float32 ones"
    return "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16 or ARM's bf16)"


@cache
def _measure_bf16_speedup() -> float:
    """The measured speed of matrix products in bfloat16, relative to float32: AVX-512's differ by processor."""
    full, half = torch.ones(512, 512), torch.ones(512, 512, dtype=torch.bfloat16)
    # the minimum of six, as other load only adds time
    seconds = [min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=6)) for matrix in (full, half)]  # noqa: B023
    return seconds[0] / seconds[1]
