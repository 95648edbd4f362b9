"""Optimizers, with weight decay on weight matrices only, and a learning rate of their own for a ranker's new parts.

Embeddings may be a separate group with its own gradient clipping, and weight decay on the rows a batch looked up only
(L2 regularization, as in ConveRT's graphs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.settings.training import OptimizerConfig

PIECE = 1 << 16  # weights updated at a time


class Adadelta(torch.optim.Adadelta):
    """`torch.optim.Adadelta` with its numbers and states (Zeiler, 2012), a piece within the cache at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(p.device.type != "cpu" or not p.is_contiguous() for p in parameters):
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
        for values, gradient, squares, deltas in _iter_pieces(*tensors):
            if group["maximize"]:
                gradient = -gradient
            if group["weight_decay"]:
                gradient = gradient.add(values, alpha=group["weight_decay"])
            squares.mul_(rho).addcmul_(gradient, gradient, value=1 - rho)
            delta = deltas.add(eps).sqrt_().div_(squares.add(eps).sqrt_()).mul_(gradient)
            deltas.mul_(rho).addcmul_(delta, delta, value=1 - rho)
            values.add_(delta, alpha=-group["lr"])


def _iter_pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.detach().view(-1).split(PIECE) for tensor in tensors), strict=True)


_CLASSES: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "sgd": torch.optim.SGD,
    "adadelta": Adadelta,
}
FUSED = ("adam", "adamw", "sgd")  # torch updates all numbers of a parameter in one pass
NEW = "new"  # the key that marks the group of new parts
_ADAMS = ("adam", "adamw", "adamax")


def build_optimizer(model: TrainableModel, config: OptimizerConfig) -> Optimizer:
    """Builds the optimizer. ConfigError: no parameter is trainable, or with `embedding_clip` no embedding."""
    groups = build_parameter_groups(model, config)
    if not groups:
        raise ConfigError("nothing to train: all parameters of the model are frozen")
    if config.embedding_clip and not any("clip" in group for group in groups):
        raise ConfigError(
            "embedding_clip limits the gradients of embeddings, and none are trained: leave it out, or train all of "
            "the encoder",
            argument="embedding_clip",
        )
    options: dict[str, Any] = {"lr": config.learning_rate}
    if config.name in _ADAMS:
        options |= {"betas": config.betas, "eps": config.eps}
    elif config.name == "adadelta":
        options |= {"rho": config.rho, "eps": config.eps}
    else:
        options |= {"momentum": config.momentum, "nesterov": config.nesterov and config.momentum > 0}
    if config.name in FUSED:
        options["fused"] = True
    return _CLASSES[config.name](groups, **options)


def build_parameter_groups(model: TrainableModel, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Parameter groups, each with its peak rate as `lr`: with weight decay, without, clipped embeddings, new parts."""
    new = [parameter for parameter in model.new_parameters if parameter.requires_grad]
    new_ids = {id(parameter) for parameter in new}
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in new_ids]
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    apart = [p for p in trained if id(p) in tables] if config.embedding_clip else []
    others = [p for p in trained if not any(p is table for table in apart)]
    clip = {"clip": config.embedding_clip, "lookup_decay": config.weight_decay}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        {"params": apart, "weight_decay": 0.0, **clip},
        {"params": new, "weight_decay": 0.0, "lr": config.rate_of_new_parts, NEW: True},
    ]
    return [{"lr": config.learning_rate, **group} for group in groups if group["params"]]


@torch.no_grad()
def clip_embeddings(optimizer: Optimizer) -> None:
    """Before a step: adds weight decay to the looked-up rows' gradients, and clips embeddings' gradients."""
    for group in optimizer.param_groups:
        if group.get("clip") is None:
            continue
        for table in group["params"]:
            if table.grad is None:
                continue
            looked_up = table.grad.any(1).nonzero().squeeze(1)
            table.grad.index_add_(0, looked_up, table[looked_up], alpha=group["lookup_decay"])
            nn.utils.clip_grad_norm_(table, group["clip"])
