"""Weights in 16 bits, rounded once: a model's own for good, a copy's for evaluation, a step's for all of its pieces.

Autocast rounds weights anew in each call that learns nothing, which for one short text takes longer than its products,
and in each piece of a step whose activations are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyencoder.modeling.tracing import is_traced

__all__ = ["RoundedWeights", "StepWeights", "run_with"]

T = TypeVar("T")


class RoundedWeights:
    """Of a model that learns nothing at the moment: which weights it runs with.

    A copy or a pickle of it is without the copied model, which is no part of a model's `state_dict` either.
    """

    def __init__(self, *, for_good: bool = False) -> None:
        self.for_good = for_good
        """Whether the model's own weights were rounded: such a model is neither trained nor exported."""
        self._copy: nn.Module | None = None
        self._versions: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RoundedWeights, for_good=self.for_good), ()

    def round(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Have the model's parameters in another type, for good. Buffers stay: what is computed of them is exact."""
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(dtype)
        self.for_good = True

    def model_of(self, model: nn.Module, *, learns: bool) -> nn.Module | None:
        """The model to run in place of `model`, whose weights are rounded; None for `model` itself.

        That is itself, after `round`; or, in inference where autocast asks for bfloat16, a copy. The copy is
        made when it is first needed, and again when the weights have changed.
        """
        if self.for_good:
            return model
        if learns:
            self.forget()  # the weights may change now, and fused optimizers do not count that
            return None
        weight = next(model.parameters())
        device = weight.device.type
        if weight.dtype != torch.float32 or is_traced() or not torch.is_autocast_enabled(device):
            return None
        return self._copy_of(model) if torch.get_autocast_dtype(device) == torch.bfloat16 else None

    def _copy_of(self, model: nn.Module) -> nn.Module:
        versions = [(parameter.data_ptr(), _version(parameter)) for parameter in model.parameters()]
        if self._copy is None or versions != self._versions:
            kept: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
            for parameter in model.parameters():
                kept[id(parameter)] = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
            self._copy, self._versions = deepcopy(model, kept), versions
        return self._copy.eval()

    def forget(self) -> None:
        """Give the copy's memory back."""
        self._copy, self._versions = None, []


def _version(tensor: Tensor) -> int:
    """The tensor's version, which counts writes; 0 for tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


class StepWeights:
    """The weights of a model's linear layers as autocast would cast them, once for all the pieces of a step.

    Made where a step begins, in its autocast; without autocast weights are not cast. Pieces that shared what
    autocast itself has cast would add up its gradient in 16 bits, of which many pieces lose the small parts: here each
    piece's gradient goes back to the weights by itself, which add it up in their own type.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._cast: dict[str, tuple[nn.Parameter, Tensor]] = {}
        device = next(model.parameters()).device.type
        if not torch.is_autocast_enabled(device):
            return
        dtype = torch.get_autocast_dtype(device)
        for prefix, layer in model.named_modules():
            if isinstance(layer, nn.Linear):
                for name, weight in layer.named_parameters(prefix, recurse=False):
                    self._cast[name] = weight, weight.detach().to(dtype)

    def run(self, function: Callable[..., T], *inputs: Any) -> T:
        """`function(*inputs)`, which calls the model, with these weights."""
        if not self._cast:
            return function(*inputs)
        weights = {name: _AlreadyCast.apply(*pair) for name, pair in self._cast.items()}
        return run_with(self._model, weights, function, *inputs)


def run_with(model: nn.Module, weights: Mapping[str, Tensor], function: Callable[..., T], *inputs: Any) -> T:
    """`function(*inputs)`, which calls the model, with these tensors in the place of the model's parameters."""
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    result: T = functional_call(_Calling(model, function), tensors, inputs)
    return result


class _Calling(nn.Module):
    """A function that calls a model, as a module with the model's parameters."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


class _AlreadyCast(torch.autograd.Function):
    """A weight's cast that is there already; the gradient is cast back."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cast: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None
