"""Initialises a ranker from another's weights: a poly-encoder from a bi-encoder, a cross-encoder from either.

A cross-encoder that starts from a ranker with vectors is residual: it keeps that ranker as its `base`, and adds its own
output, at first 0, to the base's score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.families import get_family
from polyencoder.modeling.finite import check_finite

# Each tower -> the other model's towers to start from, in order of preference
_SOURCES = {
    "context_tower.": ("context_tower.", "tower."),
    "own_candidate_tower.": ("own_candidate_tower.", "context_tower.", "tower."),
    "tower.": ("tower.", "context_tower."),
    "own_candidate_dense.": ("own_candidate_dense.", "dense."),
    "base.": ("base.", ""),
}
_LENGTHS = ("text_truncate", "label_truncate", "history_size")

# fields of weights that only one architecture has: codes, their attention, the map of token vectors
_ARCHITECTURE_FIELDS = ("context_vectors", "poly_attention", "poly_attention_heads", "token_dim")
_KIND_FIELDS = ("n_codes", "codes_attention", "codes_attention_heads")  # of a kind of context vectors


def transfer_weights(model: RankerModel, weights: Mapping[str, Tensor], *, origin: str) -> list[str]:
    """Copies another ranker's weights into `model`; returns the names of tensors left at their initial values.

    Every tensor of the towers and of the base must have a counterpart; what only this architecture has (codes, the last
    layer of a cross-encoder) keeps its initial values.
    """
    check_finite(weights.items(), origin=origin)
    state = model.state_dict()
    fresh: list[str] = []
    for name, tensor in state.items():
        tower = next((tower for tower in _SOURCES if name.startswith(tower)), None)
        names = [name] if tower is None else [source + name[len(tower) :] for source in _SOURCES[tower]]
        counterpart = next((weights[source] for source in names if source in weights), None)
        if counterpart is not None and counterpart.shape == tensor.shape:
            tensor.copy_(counterpart)
        elif tower is None:
            fresh.append(name)
        else:
            problem = (
                "is missing"
                if counterpart is None
                else f"has shape {list(counterpart.shape)}, not {list(tensor.shape)}"
            )
            raise CheckpointError(f"{origin}: cannot start from these weights: {names[0]} {problem}")
    return fresh


def select_inherited_fields(
    stored: RankerConfig,
    architecture: Architecture,
    *,
    explicit: Mapping[str, Any] | None = None,
    residual: bool | None = None,
) -> dict[str, Any]:
    """The fields (pooling, scaling, ...) that a ranker of this architecture takes from the ranker that it starts from.

    `explicit`: fields that the caller sets. The scaling of normalized vectors (a cosine's) differs from one of
    outputs: it is inherited only if both normalize, or neither does; the number of context vectors only if both have
    the same kind. `residual`: whether the ranker adds its score to the score of the ranker that it starts from; None
    where this is possible.

    Raises:
        ConfigError: a `residual` that is not possible.
    """
    explicit = explicit or {}
    if not get_family(stored.architecture).can.has_vectors:
        stored = replace(stored, normalize=False)  # without vectors, its scaling is no cosine's
    names, together = ["reduction", "reduction_outputs"], not get_family(architecture).can.has_vectors
    names += ["pair_start", "pair_truncate"] if together else ["normalize", "candidate_mlp", "prompt_tokens"]
    # the layers of a sentence encoder, or of a reranker's head
    names += ["dense"] if together != get_family(stored.architecture).can.has_vectors else []
    names += [] if together else ["vector_dim"]  # an error of `check_config` where vectors cannot be shortened
    if architecture == stored.architecture:
        same_kind = explicit.get("context_vectors") in (None, stored.context_vectors)
        names += [*_ARCHITECTURE_FIELDS, *(_KIND_FIELDS if same_kind else [])]
    inherited = {name: getattr(stored, name) for name in names}
    has_length_1 = not together and explicit.get("normalize", stored.normalize)
    means_the_same = has_length_1 == stored.normalize or (
        together and not get_family(stored.architecture).can.has_vectors
    )
    if residual is not False:
        inherited["base"] = _get_base(stored) if together else None
        if residual and inherited["base"] is None:
            new, old = (get_family(name).can.title for name in (architecture, stored.architecture))
            raise build_residual_error(f"it is a {new} from a {old}")
    return inherited | ({"output_scaling": stored.output_scaling} if means_the_same else {})


def build_residual_error(reason: str) -> ConfigError:
    """The error of `residual` without a ranker to add to."""
    return ConfigError(
        "residual adds a cross-encoder's score to that of the bi-, poly- or late-interaction encoder that it starts "
        f"from, but {reason}: leave it out",
        argument="residual",
    )


def check_layout(config: RankerConfig) -> None:
    """Raises ConfigError if a residual ranker's texts are laid out otherwise than its base's, lengths apart."""
    if config.base is None:
        return
    text, base_text = config.text, replace(config.base.text, candidate_rows=False)
    for name in (field.name for field in fields(TextConfig) if field.name not in _LENGTHS):
        if (value := getattr(text, name)) != (base_value := getattr(base_text, name)):
            raise ConfigError(
                f"{name} is {value!r}, but the ranker that the cross-encoder starts from, to whose score it adds "
                f"(residual), has {base_value!r}: leave it out, or take its encoder alone (residual off)",
                argument="turn_separator" if name == "separator" else name,
            )


def _get_base(stored: RankerConfig) -> RankerConfig | None:
    """The ranker to add to; None if the stored ranker scores no texts by vectors of its own."""
    has_own_vectors = get_family(stored.architecture).can.has_vectors and stored.foreign_dim is None
    return stored if has_own_vectors else stored.base
