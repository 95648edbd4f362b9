"""`weights_state`: a value that changes with a model's weights, for what is computed from them and kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["weights_state"]

_steps = 0  # of all optimizers: fused ones do not count up the versions of the weights


def _count(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count)


def weights_state(model: nn.Module) -> Hashable:
    """Changes with each change of a parameter in place, each new tensor in its place, and each step of an optimizer.

    Writes to `parameter.data` in place are not seen.
    """
    return _steps, *((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
