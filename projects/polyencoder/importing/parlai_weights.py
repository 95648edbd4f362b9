"""Converts the weights of ParlAI's own rankers to ours: renamed tensors, the same scores.

This module reads a state dict and options as plain mappings; it never imports ParlAI. A missing or unknown tensor is an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing.names import check_names, expand_names
from polyencoder.importing.parlai_encoder import (
    ENCODER_OPTIONS,
    VARIANTS,
    build_encoder_config,
    build_encoder_names,
    extract_encoder_weights,
)

# For each architecture: ParlAI's encoders -> our towers
_TOWERS: dict[str, dict[str, str]] = {
    "bi": {"context_encoder": "context_tower", "cand_encoder": "own_candidate_tower"},
    "poly": {"encoder_ctxt": "context_tower", "encoder_cand": "own_candidate_tower"},
    "cross": {"encoder": "tower"},
}
_PERCEPTRON = "cand_encoder.mlp"

# Multi-head attention: ParlAI's tensors -> ours
_PROJECTIONS = {"q_lin.*": "query.*", "k_lin.*": "key.*", "v_lin.*": "value.*", "out_lin.*": "output.*"}

# The options that shape a model beside its encoders, with ParlAI's defaults; None for no default
_OPTIONS: dict[str, dict[str, Any]] = {
    "bi": {
        "reduction_type": "mean",
        "share_word_embeddings": True,
        "share_encoders": False,
        "use_memories": False,
        "wrap_memory_encoder": False,
        "normalize_sent_emb": False,
    },
    "poly": {
        "reduction_type": None,
        "polyencoder_type": None,
        "poly_n_codes": None,
        "poly_attention_type": None,
        "codes_attention_type": None,
        "poly_attention_num_heads": 4,
        "codes_attention_num_heads": 4,
    },
    "cross": {"reduction_type": "first"},
}

# The supported values, and why others are not
_ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "variant": (tuple(VARIANTS), "no encoder of Hugging Face is equal to it"),
    "activation": (("gelu", "relu"), "ParlAI has no other"),
    "reduction_type": (("first", "mean", "max"), "ParlAI has no other"),
    "use_memories": ((False,), "a context's vector then depends on memories, which only its own agent finds"),
    "polyencoder_type": (("codes", "n_first"), "ParlAI has no other"),
    "poly_attention_type": (("basic", "sqrt", "multihead"), "ParlAI has no other"),
    "codes_attention_type": (("basic", "sqrt", "multihead"), "ParlAI has no other"),
}


def convert_parlai(
    state: Mapping[str, Tensor], opt: Mapping[str, Any], *, architecture: Architecture, text: TextConfig, origin: str
) -> tuple[RankerConfig, dict[str, Tensor]]:
    """The configuration and the weights, for `load_weights`, of the ranker that gives the same scores as ParlAI's.

    Where ParlAI's scores depend on the rest of a batch (`explain_batch_dependence`), ours are those without padding.
    `relu_dropout`, which does not affect scores, is dropped: BERT lacks it, and training continues without it.

    state, opt: what `model` holds in ParlAI's model file, and its `.opt`. architecture: ours: bi for
    transformer/biencoder and /ranker. text: the layout, part of the configuration. The weights are float32 and may
    share memory with `state`.

    Raises:
        CheckpointError: an option is missing or not supported, or a tensor is missing, unknown, or differs from one
            that it must equal.
    """
    opt = _complete(opt, architecture, origin=origin)
    shared = {"cand_encoder"} if opt.get("share_encoders") else set()
    towers = {prefix: tower for prefix, tower in _TOWERS[architecture].items() if prefix not in shared}
    other_names = _build_other_names(opt, architecture)
    names = [f"{prefix}.{name}" for prefix in towers for name in build_encoder_names(opt)] + list(other_names)
    seconds = _build_second_names(opt) if architecture == "bi" else {}
    differing = [
        f"{name} differs from {first}, which it should equal"
        for name, first in seconds.items()
        if first is not None and {name, first} <= state.keys() and not torch.equal(state[name], state[first])
    ]
    check_names(state, names, seconds, earlier=differing, origin=origin)

    weights = {ours: state[name].float() for name, ours in other_names.items()}
    longest = text.longest_context + (text.label_truncate if architecture == "cross" else 0)
    encoder: dict[str, Tensor] = {}
    for prefix, tower in towers.items():  # of one size, which the options do not always contain
        encoder = extract_encoder_weights(state, prefix, opt, longest=longest)
        weights |= {f"{tower}.model.{name}": tensor for name, tensor in encoder.items()}
    config = _build_ranker_config(opt, architecture, text, build_encoder_config(opt, encoder))
    if config.candidate_mlp:
        _scale_perceptron(weights, float(opt["output_scaling"]), normalize=config.normalize)
    return config, weights


def explain_batch_dependence(opt: Mapping[str, Any], architecture: Architecture) -> list[str]:
    """Why ParlAI's scores of an example depend on the rest of its batch, so that ours differ; empty if they do not."""
    opt = ENCODER_OPTIONS | _OPTIONS[architecture] | dict(opt)
    differences = []
    if opt["reduction_type"] == "max":
        differences.append("ParlAI's reduction_type max takes its zeros at padding for outputs")
    if opt["reduction_type"] == "mean" and opt["variant"] == "prelayernorm":
        differences.append("ParlAI's reduction_type mean with the variant prelayernorm sums outputs at padding too")
    if architecture == "bi" and opt["normalize_sent_emb"]:
        differences.append(
            "ParlAI's normalize_sent_emb divides inline candidates by the norm of all candidates of an example"
        )
    return differences


def _complete(opt: Mapping[str, Any], architecture: Architecture, *, origin: str) -> dict[str, Any]:
    """All options that shape a model, checked."""
    defaults = ENCODER_OPTIONS | {"output_scaling": 1.0} | _OPTIONS[architecture]
    values = {name: opt.get(name, default) for name, default in defaults.items()}
    if values.get("polyencoder_type") == "n_first":
        values["codes_attention_type"] = "basic"  # there are no codes, so its value does not matter
    for name, value in values.items():
        if value is None:
            raise CheckpointError(f"{origin}: its options have no `{name}`; give the .opt file of this model")
        allowed, reason = _ALLOWED.get(name, ((value,), ""))
        if value not in allowed:
            raise CheckpointError(
                f"{origin}: its weights are for {name} {value}, which is not supported: "
                f"{reason}; only {' or '.join(map(str, allowed))} can"
            )
    if values["n_encoder_layers"] > 0:
        values["n_layers"] = values["n_encoder_layers"]
    if architecture == "cross":
        values["n_segments"] = 2  # independent of its options
    return values


def _build_other_names(opt: Mapping[str, Any], architecture: Architecture) -> dict[str, str]:
    """The tensors outside the encoders -> our names for them."""
    table: dict[str, str] = {}
    if architecture == "cross":
        table = {"linear_layer.*": "linear.*"}
    elif architecture == "bi" and opt["share_encoders"]:
        table = {f"{_PERCEPTRON}.{layer}.*": f"candidate_mlp.{layer}.*" for layer in (0, 2)}
    elif architecture == "poly":
        table = {"codes": "codes.codes"} if opt["polyencoder_type"] == "codes" else {}
        attentions = {"codes": ("code_attention", "codes.attention"), "poly": ("attention", "attention")}
        for kind, (theirs, ours) in attentions.items():
            if opt[f"{kind}_attention_type"] == "multihead":
                table |= {f"{theirs}.{old}": f"{ours}.{new}" for old, new in _PROJECTIONS.items()}
    return expand_names(table)


def _build_second_names(opt: Mapping[str, Any]) -> dict[str, str | None]:
    """Redundant tensors of a bi-encoder's state: name -> the name whose tensor it must equal; None if unused.

    ParlAI keeps the word embeddings beside the encoders that use them. Its context encoder also encodes memories and,
    with `share_encoders`, candidates; memories may have a perceptron.
    """
    encoder = build_encoder_names(opt)
    context, candidates = "context_encoder.embeddings.weight", "cand_encoder.embeddings.weight"
    names: dict[str, str | None] = {"embeddings.weight": context}
    if opt["share_encoders"]:
        names |= {f"cand_encoder.transformer.{name}": f"context_encoder.{name}" for name in encoder}
        names |= {} if opt["share_word_embeddings"] else {"cand_embeddings.weight": None}
    elif opt["share_word_embeddings"]:
        names[candidates] = context
    else:
        names["cand_embeddings.weight"] = candidates
    memories = "memory_transformer"
    if opt["wrap_memory_encoder"]:
        names |= {f"{memories}.mlp.{layer}.{kind}": None for layer in (0, 2) for kind in ("weight", "bias")}
        memories = f"{memories}.transformer"
    return names | {f"{memories}.{name}": f"context_encoder.{name}" for name in encoder}


def _scale_perceptron(weights: dict[str, Tensor], scaling: float, *, normalize: bool) -> None:
    """Folds the factor that ParlAI applies before its perceptron, and we after ours, into the weights."""
    weights["candidate_mlp.0.weight"] = weights["candidate_mlp.0.weight"] * scaling
    if not normalize:
        for kind in ("weight", "bias"):
            weights[f"candidate_mlp.2.{kind}"] = weights[f"candidate_mlp.2.{kind}"] / scaling


def _build_ranker_config(
    opt: Mapping[str, Any], architecture: Architecture, text: TextConfig, backbone: dict[str, Any]
) -> RankerConfig:
    fields: dict[str, Any] = {}
    if architecture == "bi":
        shared, normalize = bool(opt["share_encoders"]), bool(opt["normalize_sent_emb"])
        fields = {"share_encoders": shared, "candidate_mlp": shared, "normalize": normalize}
        if normalize:  # ParlAI's vectors have length 1, whatever their scale
            fields["output_scaling"] = 1.0
    if architecture == "poly":
        fields = {
            "context_vectors": opt["polyencoder_type"],
            "n_codes": opt["poly_n_codes"],
            "poly_attention": opt["poly_attention_type"],
            "codes_attention": opt["codes_attention_type"],
            "poly_attention_heads": opt["poly_attention_num_heads"],
            "codes_attention_heads": opt["codes_attention_num_heads"],
        }
    return RankerConfig(
        architecture=architecture,
        backbone=backbone,
        text=text,
        reduction=opt["reduction_type"],
        pair_start=architecture == "cross",  # ParlAI's pairs are start context end start candidate end
        **{"output_scaling": opt["output_scaling"]} | fields,
    )
