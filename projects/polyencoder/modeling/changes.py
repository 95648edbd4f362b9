"""`weights_state`: a value that changes with a model's weights, for what is computed from them and kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

_steps = 0  # of all optimizers: fused ones do not count up the versions of the weights


def _count(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count)


def weights_state(model: nn.Module) -> Hashable:
    """Changes with each change of a parameter in place, each new tensor in its place, and each step of an optimizer.

    Writes to `parameter.data` in place are not seen; see `weights_sample`.
    """
    return _steps, *((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())


@torch.no_grad()
def weights_sample(model: nn.Module) -> bytes:
    """A few weights, of every twelfth parameter: shows that all were overwritten through `data`, as averaging does."""
    some = [p.reshape(-1)[p.numel() // 2] for p in [*model.parameters()][::12] if p.numel()]
    return torch.stack([one.double() for one in some]).cpu().numpy().tobytes() if some else b""  # graphs have none
