"""Mixed precision: float32, autocast to bfloat16, or autocast to float16 with a scaled loss."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.modeling.bf16 import why_bf16_gains_nothing

__all__ = ["Precision", "PrecisionName"]

PrecisionName = Literal["float32", "bfloat16", "float16"]


class Precision:
    """The precision of a step on a device. Weights, gradients and the optimizer's states stay in float32.

    Args:
        name: "float32", "bfloat16" or, on a GPU alone, "float16".
        device: where the model is.

    Raises:
        ConfigError: there is no such precision, or not on this device.
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        if name not in get_args(PrecisionName):
            raise ConfigError(
                f"precision is {name!r}; it must be one of {', '.join(get_args(PrecisionName))}", argument="precision"
            )
        if name == "float16" and device.type != "cuda":
            raise ConfigError("float16 needs a GPU; on a CPU bfloat16 may be faster than float32", argument="precision")
        self.name, self._device = name, device
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    @property
    def warning(self) -> str | None:
        """Why this precision gains nothing here, if so."""
        return why_bf16_gains_nothing(self._device) if self.name == "bfloat16" else None

    @property
    def scales(self) -> bool:
        """Whether gradients are those of a scaled loss until `unscale`: they may overflow, and are then left out."""
        return self._scaler.is_enabled()

    def autocast(self) -> torch.autocast:
        dtype = torch.float16 if self.name == "float16" else torch.bfloat16
        return torch.autocast(self._device.type, dtype, enabled=self.name != "float32")

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Make the gradients those of the loss itself, before they are clipped."""
        if self.scales:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step; left out where scaled gradients have overflowed, and the scale is then lowered."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self.scales:
            self._scaler.load_state_dict(state)
