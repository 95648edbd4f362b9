"""Mixed precision: float32, autocast to bfloat16, or autocast to float16 with a scaled loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.modeling.bf16 import why_bf16_gains_nothing
from polyencoder.settings.base import check_values
from polyencoder.settings.training import PrecisionName, TrainingConfig


class Precision:
    """Mixed precision on a device. Weights, gradients and optimizer state stay in float32.

    Args:
        name: "float32", "bfloat16" or, on a GPU, "float16".
        loss_scale: a fixed loss scale; None: dynamic with float16, else 1.

    Raises:
        ConfigError: an unknown name, or not supported on this device.
    """

    def __init__(self, name: PrecisionName, device: torch.device, *, loss_scale: float | None = None) -> None:
        check_values(TrainingConfig, precision=name)
        if name == "float16" and device.type != "cuda":
            raise ConfigError("float16 needs a GPU; on a CPU bfloat16 may be faster than float32", argument="precision")
        self.name, self._device, self._fixed = name, device, loss_scale
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "float16" and loss_scale is None)

    @property
    def warning(self) -> str | None:
        """Why this precision is no faster on this device; None if it is."""
        return why_bf16_gains_nothing(self._device) if self.name == "bfloat16" else None

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
