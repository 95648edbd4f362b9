"""Converts ParlAI's transformers to Hugging Face encoders: renamed tensors, the same outputs.

ParlAI's `variant`, the place of its normalizations, decides the class:

xlm, bart      embeddings, normalization, layers that normalize behind each block: BERT
aiayn          the same without the normalization of the embeddings: BERT with an identity instead
prelayernorm   layers that normalize before each block, normalization of the outputs: RoBERTa-PreLayerNorm, with an
               identity instead of its normalization of the embeddings

Word embeddings that ParlAI scales at run time (`embeddings_scale`) are scaled once, here; sinusoidal positions become
a table like trained ones; an encoder without segment embeddings gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyencoder.importing.names import POSITIONS, SEGMENTS, WORDS, expand_names
from polyencoder.modeling.encoder_config import build_scratch_config, get_first_position

# The options that shape an encoder, with ParlAI's defaults; None for no default
ENCODER_OPTIONS: dict[str, Any] = {
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
}

_POST, _PRE = "bert", "roberta-prelayernorm"
VARIANTS = {"xlm": _POST, "bart": _POST, "aiayn": _POST, "prelayernorm": _PRE}

# ParlAI's tensors -> the tensors of both classes, and ParlAI's normalizations -> the tensors of each variant
_NAMES = {
    "embeddings.weight": WORDS,
    "position_embeddings.weight": POSITIONS,
    "layers.{}.attention.q_lin.*": "encoder.layer.{}.attention.self.query.*",
    "layers.{}.attention.k_lin.*": "encoder.layer.{}.attention.self.key.*",
    "layers.{}.attention.v_lin.*": "encoder.layer.{}.attention.self.value.*",
    "layers.{}.attention.out_lin.*": "encoder.layer.{}.attention.output.dense.*",
    "layers.{}.ffn.lin1.*": "encoder.layer.{}.intermediate.dense.*",
    "layers.{}.ffn.lin2.*": "encoder.layer.{}.output.dense.*",
}
_BEHIND = {
    "layers.{}.norm1.*": "encoder.layer.{}.attention.output.LayerNorm.*",
    "layers.{}.norm2.*": "encoder.layer.{}.output.LayerNorm.*",
}
_NORMS = {
    "xlm": {"norm_embeddings.*": "embeddings.LayerNorm.*", **_BEHIND},
    "bart": {"norm_embeddings.*": "embeddings.LayerNorm.*", **_BEHIND},
    "aiayn": _BEHIND,
    "prelayernorm": {
        "norm_embeddings.*": "LayerNorm.*",
        "layers.{}.norm1.*": "encoder.layer.{}.attention.LayerNorm.*",
        "layers.{}.norm2.*": "encoder.layer.{}.intermediate.LayerNorm.*",
    },
}

_NULL = 0  # ParlAI's dictionaries begin with their padding token


def build_encoder_names(opt: Mapping[str, Any]) -> dict[str, str]:
    """Names of a ParlAI encoder's tensors -> names in the Hugging Face class."""
    segments = {"segment_embeddings.weight": SEGMENTS} if opt["n_segments"] >= 1 else {}
    return expand_names(_NAMES | _NORMS[opt["variant"]] | segments, n_layers=opt["n_layers"])


def extract_encoder_weights(
    state: Mapping[str, Tensor], prefix: str, opt: Mapping[str, Any], *, longest: int
) -> dict[str, Tensor]:
    """The tensors of the encoder at `prefix`, in float32, as tensors of the Hugging Face class.

    `longest`: maximum tokens of a sequence. The last position is repeated if ParlAI has fewer, where
    it would stop with an error.
    """
    tensors = {ours: state[f"{prefix}.{name}"].float() for name, ours in build_encoder_names(opt).items()}
    if opt["embeddings_scale"]:
        tensors[WORDS] = tensors[WORDS] * math.sqrt(opt["embedding_size"])
    # zeros for segments that it lacks: with two, a cross-encoder can start from any of these encoders
    segments = tensors.get(SEGMENTS, tensors[WORDS][:0])
    tensors[SEGMENTS] = torch.cat([segments, segments.new_zeros(max(2 - len(segments), 0), segments.size(1))])
    positions = tensors[POSITIONS]
    first = get_first_position({"model_type": VARIANTS[opt["variant"]], "pad_token_id": _NULL})
    before = positions.new_zeros(first, positions.size(1))
    behind = positions[-1:].expand(max(longest - len(positions), 0), -1)
    tensors[POSITIONS] = torch.cat([before, positions, behind])
    return tensors


def build_encoder_config(opt: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The configuration of an encoder with these options and weights, for `build_backbone`."""
    config = build_scratch_config(
        vocabulary_size=weights[WORDS].size(0),
        dim=opt["embedding_size"],
        n_layers=opt["n_layers"],
        n_heads=opt["n_heads"],
        ffn_dim=opt["ffn_size"],
        n_positions=weights[POSITIONS].size(0),
        activation=opt["activation"],
        dropout=opt["dropout"],
        attention_dropout=opt["attention_dropout"],
        pad_id=_NULL,
        layer_norm_eps=1e-5,
    )
    config |= {"model_type": VARIANTS[opt["variant"]], "type_vocab_size": weights[SEGMENTS].size(0)}
    return config if opt["variant"] in ("xlm", "bart") else config | {"embedding_norm": False}
