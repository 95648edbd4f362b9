"""Cache-friendly ADADELTA for CPUs: ConveRT's optimizer, which took a fifth of a step for 38 million weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 16  # weights updated at a time


class Adadelta(torch.optim.Adadelta):
    """`torch.optim.Adadelta`, with the same numbers and states (Zeiler, "ADADELTA", 2012, algorithm 1).

    torch makes ten passes over a whole parameter; here all ten operations run on a piece of it, within the cache.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        given = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(p.device.type != "cpu" or not p.is_contiguous() for p in given):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, rho, eps = self.state[parameter], group["rho"], group["eps"]
        if not state:
            state["step"] = torch.zeros(())
            state["square_avg"], state["acc_delta"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        assert parameter.grad is not None
        tensors = parameter, parameter.grad.contiguous(), state["square_avg"], state["acc_delta"]
        for values, gradient, squares, deltas in _pieces(*tensors):
            if group["maximize"]:
                gradient = -gradient
            if group["weight_decay"]:
                gradient = gradient.add(values, alpha=group["weight_decay"])
            squares.mul_(rho).addcmul_(gradient, gradient, value=1 - rho)
            delta = deltas.add(eps).sqrt_().div_(squares.add(eps).sqrt_()).mul_(gradient)
            deltas.mul_(rho).addcmul_(delta, delta, value=1 - rho)
            values.add_(delta, alpha=-group["lr"])


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Splits tensors into aligned pieces."""
    return zip(*(tensor.detach().view(-1).split(PIECE) for tensor in tensors), strict=True)
