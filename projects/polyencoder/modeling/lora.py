"""LoRA (Hu et al., 2022) by the peft library: Wx + (alpha / rank) BAx, with W frozen and B 0 at first."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.packages import require
from polyencoder.storage.digests import compute_fingerprint, iter_weight_parts

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

FROZEN = "frozen"  # the key of the frozen weights' digest
_ADAPTED = "base_layer."  # in the names of an adapted layer's own weights
_MATRICES = "lora_"


def add_adapters(
    model: nn.Module,
    encoders: Collection[nn.Module],
    *,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Collection[str] = (),
) -> None:
    """Freezes encoders and adds adapters to their linear layers, in place; the rest of the model is unchanged.

    alpha: the scale of the matrices times their rank; None for twice the rank. dropout: of their inputs. targets: the
    last parts of names of the layers to adapt, such as "query"; none for all linear layers.

    Raises:
        ConfigError: peft is not installed, or there is no such layer to adapt.
    """
    peft = require("peft", extra="lora")
    if not encoders:
        raise ConfigError("lora adapts the layers of an encoder, and this model has none to train", argument="lora")
    if select_adapted_tensors(model):
        raise ConfigError("this model has adapters already: save it, which merges them, and load it", argument="lora")
    for encoder in encoders:
        encoder.requires_grad_(False)
        layers = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
        if not layers:
            raise ConfigError("lora adapts linear layers, and this model's encoder has none", argument="lora")
        names = {name.rpartition(".")[2] for name in layers}
        if unknown := sorted({*targets} - names):
            raise ConfigError(
                f"lora_targets: the encoder has no linear layer {unknown[0]!r}; it has {', '.join(sorted(names))}",
                argument="lora_targets",
            )
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=2 * rank if alpha is None else alpha,
            lora_dropout=dropout,
            target_modules=[name for name in layers if not targets or name.rpartition(".")[2] in targets],
        )
        peft.inject_adapter_in_model(config, encoder)
    model.train(model.training)  # the new layers, too
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    _log.info("lora of rank %d: %s of %s weights are trained", rank, f"{trained:,}", f"{total:,}")


def merge_adapters(model: M) -> M:
    """A copy of a model whose adapters are merged into its linear layers, which have their old names."""
    layer_type = require("peft.tuners.lora", extra="lora").LoraLayer
    model = copy.deepcopy(model)
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if isinstance(child, layer_type):
                child.merge()
                parent.register_module(name, child.get_base_layer())
        for attribute in ("peft_config", "_hf_peft_config_loaded"):
            parent.__dict__.pop(attribute, None)
    return model


def select_adapted_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that merging changes: adapters, and the weights beside them."""
    return {name: tensor for name, tensor in model.state_dict().items() if _ADAPTED in name or _MATRICES in name}


def get_trained_state(model: nn.Module) -> dict[str, Tensor]:
    """All tensors but the frozen weights, and a digest of the frozen weights."""
    frozen = _select_frozen(model)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
    return {**state, FROZEN: _compute_digest(frozen)}


def load_trained(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restores what `get_trained_state` gave. CheckpointError if the frozen weights or the names differ."""
    frozen = _select_frozen(model)
    if FROZEN not in state or not torch.equal(state[FROZEN], _compute_digest(frozen)):
        raise CheckpointError(
            "the weights that lora keeps frozen are not those that the run began with: give the same encoder"
        )
    missing, unexpected = model.load_state_dict({k: v for k, v in state.items() if k != FROZEN}, strict=False)
    if wrong := [*({*missing} - frozen.keys()), *unexpected]:
        raise CheckpointError(f"the checkpoint's adapters are not this model's: {wrong[0]}")


def _select_frozen(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}


def _compute_digest(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.tensor([*bytes.fromhex(compute_fingerprint(iter_weight_parts(weights)))], dtype=torch.uint8)
