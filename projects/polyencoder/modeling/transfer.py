"""Starting one ranker from another's weights: a poly-encoder from a bi-encoder, a cross-encoder from either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling import RankerModel, build_model
from polyencoder.modeling.finite import check_finite

__all__ = ["inherited_fields", "start_from", "transfer_weights"]

# Each tower, and the towers of the other model that it may start from, the nearest first
_SOURCES = {
    "context_tower.": ("context_tower.", "tower."),
    "own_candidate_tower.": ("own_candidate_tower.", "context_tower.", "tower."),
    "tower.": ("tower.", "context_tower."),
}


def transfer_weights(model: RankerModel, weights: Mapping[str, Tensor], *, origin: str) -> list[str]:
    """Copy into `model` all that the other ranker's weights have for it; gives the names that stay as they were.

    Every tensor of the towers must find its counterpart; what only this kind of ranker has (codes, the last layer of a
    cross-encoder) starts fresh when the other has none of its shape.
    """
    check_finite(weights.items(), origin=origin)
    state = model.state_dict()
    fresh: list[str] = []
    for name, tensor in state.items():
        own = next((tower for tower in _SOURCES if name.startswith(tower)), None)
        names = [name] if own is None else [source + name[len(own) :] for source in _SOURCES[own]]
        found = next((weights[n] for n in names if n in weights), None)
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
        elif own is None:
            fresh.append(name)
        else:
            what = "is missing" if found is None else f"has shape {list(found.shape)}, not {list(tensor.shape)}"
            raise CheckpointError(f"{origin}: cannot start from these weights: {names[0]} {what}")
    return fresh


def inherited_fields(stored: RankerConfig, architecture: Architecture) -> dict[str, Any]:
    """What a ranker of this architecture does with its outputs as the one that it starts from does."""
    names = ["reduction", "reduction_outputs", "output_scaling"]
    names += ["normalize", "candidate_mlp", "candidate_map"] if architecture != "cross" else []  # what vectors have
    return {name: getattr(stored, name) for name in names}


def start_from(
    other: RankerModel, architecture: Architecture, *, text: TextConfig, origin: str, **given: Any
) -> RankerModel:
    """A new ranker of this architecture whose encoders begin with another ranker's weights, and what else it has.

    `given` are fields of its `RankerConfig`; others are the other ranker's (`inherited_fields`) or have their defaults.
    Raises ConfigError where one of the two is a ConveRT, whose parts no other ranker has.
    """
    stored = other.config
    if "convert" in (stored.architecture, architecture):
        raise ConfigError(
            f"{origin} is of the architecture {stored.architecture}: no {architecture} model can start from it"
        )
    fields = inherited_fields(stored, architecture) | given
    model = build_model(RankerConfig(architecture=architecture, backbone=stored.backbone, text=text, **fields))
    transfer_weights(model, other.state_dict(), origin=origin)
    return model.eval()
