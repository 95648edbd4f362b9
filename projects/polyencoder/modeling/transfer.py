"""Starting one ranker from another's weights: a poly-encoder from a bi-encoder, a cross-encoder from either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polyencoder.config import Architecture, RankerConfig
from polyencoder.errors import CheckpointError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.families import family
from polyencoder.modeling.finite import check_finite

__all__ = ["inherited_fields", "transfer_weights"]

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


def inherited_fields(
    stored: RankerConfig, architecture: Architecture, *, normalize: bool | None = None
) -> dict[str, Any]:
    """What a ranker of this architecture does with its outputs as the one that it starts from does.

    `normalize` is that of the new one, if it is given. A scaling of vectors of length 1, that of their cosine, is not
    one of outputs: it is inherited only where both have such vectors, or neither.
    """
    names, together = ["reduction", "reduction_outputs"], not family(architecture).model.has_vectors
    names += ["pair_start"] if together else ["normalize", "candidate_mlp", "candidate_map"]
    names += ["token_dim"] if architecture == stored.architecture else []
    fields = {name: getattr(stored, name) for name in names}
    has_length_1 = not together and (stored.normalize if normalize is None else normalize)
    means_the_same = has_length_1 == stored.normalize or (
        together and not family(stored.architecture).model.has_vectors
    )
    return fields | ({"output_scaling": stored.output_scaling} if means_the_same else {})
