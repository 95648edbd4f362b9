"""Weights cast to 16 bits once: permanently, in a copy for inference, or for all chunks of a training step.

Autocast casts weights in each call without gradients, which takes longer than a short text's products, and in each
chunk of a checkpointed step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.optimizer import register_optimizer_step_post_hook

from polyencoder.modeling.tracing import is_traced

_steps = 0  # of all optimizers: fused ones do not count up the versions of the weights


def _count(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count)


def get_weights_state(model: nn.Module) -> Hashable:
    """Changes with each change of a parameter in place, each new tensor in its place, and each step of an optimizer.

    Writes to `parameter.data` in place are not seen; see `sample_weights`.
    """
    return _steps, *((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())


@torch.no_grad()
def sample_weights(model: nn.Module) -> bytes:
    """A few weights, of every twelfth parameter: shows that all were overwritten through `data`, as averaging does."""
    samples = [p.reshape(-1)[p.numel() // 2] for p in [*model.parameters()][::12] if p.numel()]
    if not samples:  # of graphs
        return b""
    return torch.stack([sample.double() for sample in samples]).cpu().numpy().tobytes()


T = TypeVar("T")


class LowPrecisionWeights:
    """Chooses a model's weights for inference: its own, or a bfloat16 copy, in no deep copy, pickle or `state_dict`."""

    def __init__(self, *, permanent: bool = False) -> None:
        self.permanent = permanent
        """Whether the model's own weights were cast, so that it can be neither trained nor exported."""
        self._copy: nn.Module | None = None
        self._copied: Hashable = None  # the state of the weights when they were copied

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LowPrecisionWeights, permanent=self.permanent), ()

    def cast(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Casts the model's parameters, permanently. Buffers are unchanged."""
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(dtype)
        self.permanent = True

    def cast_model(self, model: nn.Module, *, training: bool) -> nn.Module | None:
        """The model to run with low-precision weights; None to run `model` under the caller's autocast.

        Returns `model` after `cast`; in inference under bfloat16 autocast, a copy, which is made on first use and
        whenever the weights have changed.
        """
        if self.permanent:
            return model
        if training:
            self.forget()
            return None
        weight = next(model.parameters())
        device = weight.device.type
        if weight.dtype != torch.float32 or is_traced() or not torch.is_autocast_enabled(device):
            return None
        return self._get_copy(model) if torch.get_autocast_dtype(device) == torch.bfloat16 else None

    def _get_copy(self, model: nn.Module) -> nn.Module:
        state = get_weights_state(model)
        if self._copy is None or state != self._copied:
            memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
            for parameter in model.parameters():
                memo[id(parameter)] = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
            self._copy, self._copied = deepcopy(model, memo), state
        return self._copy.eval()

    def forget(self) -> None:
        """Frees the copy."""
        self._copy = self._copied = None


class CastOncePerStep:
    """Casts the weights of a model's linear layers as autocast would, once for all chunks of a step.

    Create it at the start of a step, within its autocast; without autocast weights are not cast. Chunks that share
    autocast's own cache would accumulate gradients in 16 bits and lose small contributions; here each chunk's gradient
    is added to the weights in float32.
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
        """Calls a function that uses the model, with these weights."""
        if not self._cast:
            return function(*inputs)
        weights = {name: _ReusedCast.apply(*pair) for name, pair in self._cast.items()}
        return run_with(self._model, weights, function, *inputs)


def run_with(model: nn.Module, weights: Mapping[str, Tensor], function: Callable[..., T], *inputs: Any) -> T:
    """Calls a function that uses the model, with these tensors as its parameters."""
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    return functional_call(_FunctionModule(model, function), tensors, inputs)


class _FunctionModule(nn.Module):
    """A function that uses a model, wrapped as a module for `functional_call`."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


class _ReusedCast(torch.autograd.Function):
    """Substitutes a weight's existing cast; the gradient is cast back."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cast: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None
