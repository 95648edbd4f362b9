"""LoRA's adapters in the checkpoints of a run: its model file has them merged, so that anything can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyencoder.errors import CheckpointError
from polyencoder.modeling import RankerModel
from polyencoder.modeling.lora import adapted_tensors
from polyencoder.settings.training import LoraConfig

_TENSORS = "adapted"  # the adapters, and the weights beside them
_SCALE = "lora_scale"  # what a product of the matrices is multiplied by


def adapters_state(model: RankerModel, lora: LoraConfig) -> dict[str, Any]:
    """The part of a run's state to restore the adapters from."""
    return {_TENSORS: adapted_tensors(model), _SCALE: lora.scale}


def restore_adapters(model: RankerModel, lora: LoraConfig, state: Mapping[str, Any], *, path: str) -> None:
    """Restores the adapters of a resumed run, if it has any. CheckpointError if it began with others, or without."""
    kept = state.get(_TENSORS, {})
    own = adapted_tensors(model) if model.is_adapted else {}
    if not (own or kept):
        return
    shapes, begun = ({name: one.shape for name, one in tensors.items()} for tensors in (own, kept))
    if shapes != begun or state.get(_SCALE, lora.scale) != lora.scale:
        raise CheckpointError(
            f"--model-file {path}: this run began with another --lora, --lora-alpha or --lora-targets: give the same, "
            "or train another model file"
        )
    model.load_state_dict(kept, strict=False)
