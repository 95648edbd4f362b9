"""The weights of ParlAI's own bi-, poly- and cross-encoders as ours: the same tensors under other names.

ParlAI's transformer, in its variant `xlm`, is a post-layer-norm BERT, so scores stay what they were. What differs:
word embeddings that ParlAI multiplies at run time (`--embeddings-scale`) are multiplied here, once, and an encoder
without segment embeddings gets zeros. This module reads a state dict and options as plain mappings; it never imports
ParlAI. Nothing is skipped: a tensor that is missing, or that has no place here, is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyencoder.backbone import scratch_config
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing.folder import weights_and_biases

# For each architecture: ParlAI's encoders -> our towers
_TOWERS: dict[str, dict[str, str]] = {
    "bi": {"context_encoder": "context_tower", "cand_encoder": "own_candidate_tower"},
    "poly": {"encoder_ctxt": "context_tower", "encoder_cand": "own_candidate_tower"},
    "cross": {"encoder": "tower"},
}

# Inside an encoder: ParlAI's tensors -> BERT's; those of a layer are modules, with a weight and a bias each
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
_POSITIONS, _SEGMENTS = (f"embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type"))
_EMBEDDINGS = {
    "embeddings.weight": WORD_EMBEDDINGS,
    "position_embeddings.weight": _POSITIONS,
    "norm_embeddings.weight": "embeddings.LayerNorm.weight",
    "norm_embeddings.bias": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "norm2": "output.LayerNorm",
}

# The options that shape a model, with the defaults of ParlAI's modules; None where they have none
_ENCODER_OPTIONS = {
    "embedding_size": None,
    "ffn_size": None,
    "n_heads": None,
    "n_layers": None,
    "n_encoder_layers": -1,
    "n_segments": 0,
    "variant": "aiayn",
    "activation": "relu",
    "embeddings_scale": False,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "output_scaling": 1.0,
}
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
    },
    "cross": {"reduction_type": "first"},
}

# The values that can be carried over. Of the others, `share_encoders` and `wrap_memory_encoder` put a perceptron behind
# an encoder, and multi-head attention has weights of its own.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "variant": ("xlm",),
    "activation": ("gelu", "relu"),
    "reduction_type": ("first", "mean", "max"),
    "share_encoders": (False,),
    "use_memories": (False,),
    "wrap_memory_encoder": (False,),
    "normalize_sent_emb": (False,),
    "polyencoder_type": ("codes", "n_first"),
    "poly_attention_type": ("basic", "sqrt"),
    "codes_attention_type": ("basic", "sqrt"),
}

_NULL = 0  # ParlAI's dictionaries begin with their padding token


def convert_parlai(
    state: Mapping[str, Tensor],
    opt: Mapping[str, Any],
    *,
    architecture: Architecture,
    text: TextConfig,
    origin: str,
) -> tuple[RankerConfig, dict[str, Tensor]]:
    """The configuration and the weights, for `load_weights`, of the ranker that gives the same scores as ParlAI's.

    Two things are not the same. ParlAI's reduction `max` also runs over the zeros that it puts at padding, so its
    scores depend on what else is in the batch: ours are those that it gives without padding. And `--relu-dropout`,
    which has no part in scores, has no place in a BERT: training goes on without it.

    Args:
        state: ParlAI's state dict: what `model` holds in its model file.
        opt: ParlAI's options: its `.opt` file.
        architecture: which of ParlAI's rankers it is, transformer/biencoder, /polyencoder or /crossencoder.
        text: how text becomes tokens; goes into the configuration as it is.
        origin: the file, for error messages.

    Returns:
        The configuration, and float32 tensors by our names; they may share memory with those of `state`.

    Raises:
        CheckpointError: if an option is missing or asks for what these rankers have not, or if a tensor is missing,
            has no place here, or differs from another that must be its equal.
    """
    opt = _complete(opt, architecture, origin=origin)
    towers = _TOWERS[architecture]
    encoder, others = _encoder_names(opt), _other_names(opt, architecture)
    names = [f"{prefix}.{name}" for prefix in towers for name in encoder] + list(others)
    _account_for(state, names, _second_names(opt, encoder) if architecture == "bi" else {}, origin=origin)

    weights = {ours: state[name].float() for name, ours in others.items()}
    for prefix, tower in towers.items():
        tensors = {ours: state[f"{prefix}.{name}"].float() for name, ours in encoder.items()}
        if opt["embeddings_scale"]:
            tensors[WORD_EMBEDDINGS] = tensors[WORD_EMBEDDINGS] * math.sqrt(opt["embedding_size"])
        tensors[_SEGMENTS] = _at_least_two_rows(tensors.get(_SEGMENTS, tensors[WORD_EMBEDDINGS][:0]))
        weights |= {f"{tower}.model.{name}": tensor for name, tensor in tensors.items()}

    # Both towers are of one size, which the options do not always tell
    sizes = {name: tensors[name].size(0) for name in (WORD_EMBEDDINGS, _POSITIONS, _SEGMENTS)}
    return _ranker_config(opt, architecture, text, sizes), weights


def _complete(opt: Mapping[str, Any], architecture: Architecture, *, origin: str) -> dict[str, Any]:
    """The options that shape a model, all of them, checked."""
    values = {name: opt.get(name, default) for name, default in (_ENCODER_OPTIONS | _OPTIONS[architecture]).items()}
    if values.get("polyencoder_type") == "n_first":
        values["codes_attention_type"] = "basic"  # there are no codes: whatever it says, it says of nothing
    for name, value in values.items():
        if value is None:
            raise CheckpointError(f"{origin}: its options have no `{name}`; give the .opt file of this model")
        if name in _ALLOWED and value not in _ALLOWED[name]:
            raise CheckpointError(
                f"{origin}: its weights are those of --{name.replace('_', '-')} {value}, which these rankers have not; "
                f"only {' or '.join(str(allowed) for allowed in _ALLOWED[name])} can be carried over"
            )
    if values["n_encoder_layers"] > 0:
        values["n_layers"] = values["n_encoder_layers"]
    if architecture == "cross":
        values["n_segments"] = 2  # whatever its options say
    return values


def _encoder_names(opt: Mapping[str, Any]) -> dict[str, str]:
    """Each tensor of one of ParlAI's encoders -> BERT's name for it."""
    names = dict(_EMBEDDINGS)
    if opt["n_segments"] >= 1:
        names["segment_embeddings.weight"] = _SEGMENTS
    for i in range(opt["n_layers"]):
        modules = {f"layers.{i}.{theirs}": f"encoder.layer.{i}.{ours}" for theirs, ours in _LAYER.items()}
        names |= weights_and_biases(modules)
    return names


def _other_names(opt: Mapping[str, Any], architecture: Architecture) -> dict[str, str]:
    """The tensors outside the encoders -> our names for them."""
    if architecture == "cross":
        return {"linear_layer.weight": "linear.weight", "linear_layer.bias": "linear.bias"}
    if architecture == "poly" and opt["polyencoder_type"] == "codes":
        return {"codes": "codes.codes"}
    return {}


def _second_names(opt: Mapping[str, Any], encoder: Mapping[str, str]) -> dict[str, str]:
    """What a bi-encoder's state has twice: name -> the name whose tensor it must equal.

    ParlAI keeps the word embeddings beside the encoders that use them, and its context encoder is the encoder of
    memories too.
    """
    context, candidates = "context_encoder.embeddings.weight", "cand_encoder.embeddings.weight"
    words = {candidates: context} if opt["share_word_embeddings"] else {"cand_embeddings.weight": candidates}
    memories = {f"memory_transformer.{name}": f"context_encoder.{name}" for name in encoder}
    return {"embeddings.weight": context, **words, **memories}


def _account_for(
    state: Mapping[str, Tensor], names: list[str], second_names: Mapping[str, str], *, origin: str
) -> None:
    """Raise CheckpointError unless `state` is all of `names`, and of `second_names` what is equal to its first."""
    known = {*names, *second_names}
    problems = [f"{name} is missing" for name in names if name not in state]
    problems += [f"{name} has no place in this model" for name in state if name not in known]
    problems += [
        f"{name} differs from {first}, of which it should be another name"
        for name, first in second_names.items()
        if name in state and first in state and not torch.equal(state[name], state[first])
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(f"{origin}: the weights are not those that the options describe: {problems[0]}{more}")


def _at_least_two_rows(segments: Tensor) -> Tensor:
    """Segment embeddings [2 or more, dim], zeros for those that ParlAI's encoder has not.

    With two, a cross-encoder can start from any of these encoders.
    """
    return torch.cat([segments, segments.new_zeros(max(2 - segments.size(0), 0), segments.size(1))])


def _ranker_config(
    opt: Mapping[str, Any], architecture: Architecture, text: TextConfig, sizes: Mapping[str, int]
) -> RankerConfig:
    backbone = scratch_config(
        vocabulary_size=sizes[WORD_EMBEDDINGS],
        dim=opt["embedding_size"],
        n_layers=opt["n_layers"],
        n_heads=opt["n_heads"],
        ffn_dim=opt["ffn_size"],
        n_positions=sizes[_POSITIONS],
        activation=opt["activation"],
        dropout=opt["dropout"],
        attention_dropout=opt["attention_dropout"],
        pad_id=_NULL,
        layer_norm_eps=1e-5,
    )
    poly = {}
    if architecture == "poly":
        poly = {
            "context_vectors": opt["polyencoder_type"],
            "n_codes": opt["poly_n_codes"],
            "poly_attention": opt["poly_attention_type"],
            "codes_attention": opt["codes_attention_type"],
        }
    return RankerConfig(
        architecture=architecture,
        backbone=backbone | {"type_vocab_size": sizes[_SEGMENTS]},
        text=text,
        reduction=opt["reduction_type"],
        output_scaling=opt["output_scaling"],
        pair_start=architecture == "cross",  # ParlAI's pairs are start context end start candidate end
        **poly,
    )
