"""Converts RoBERTa checkpoints of fairseq to backbones, without the fairseq package.

fairseq's RoBERTa and Hugging Face's compute the same function. Three things differ on disk: older files
keep the query, key and value projections of a layer as one tensor, the encoder has one of several prefixes,
and token ids are indirect: an encoding splits a text into symbols, and the id is the symbol's line in `dict.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import RobertaConfig

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.fairseq_dictionary import MASK, PAD, UNKNOWN, FairseqDictionary
from polyencoder.importing.fairseq_encodings import Encoding, build_tokenizer
from polyencoder.importing.folder import save_backbone
from polyencoder.importing.names import POSITIONS, SEGMENTS, WORDS, add_unknown_rows, expand_names, rename
from polyencoder.importing.pickles import get_tensors, read_checkpoint, to_plain
from polyencoder.validation import Count, Share, validated

_ROLES = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}

_PREFIXES = ("encoder.sentence_encoder.", "decoder.sentence_encoder.", "sentence_encoder.")
_HEADS = ("encoder.lm_head.", "decoder.lm_head.", "lm_head.", "classification_heads.")

_NAMES = {
    "embed_tokens.weight": WORDS,
    "embed_positions.weight": POSITIONS,
    "layernorm_embedding.*": "embeddings.LayerNorm.*",
    "layers.{}.self_attn.q_proj.*": "encoder.layer.{}.attention.self.query.*",
    "layers.{}.self_attn.k_proj.*": "encoder.layer.{}.attention.self.key.*",
    "layers.{}.self_attn.v_proj.*": "encoder.layer.{}.attention.self.value.*",
    "layers.{}.self_attn.out_proj.*": "encoder.layer.{}.attention.output.dense.*",
    "layers.{}.self_attn_layer_norm.*": "encoder.layer.{}.attention.output.LayerNorm.*",
    "layers.{}.fc1.*": "encoder.layer.{}.intermediate.dense.*",
    "layers.{}.fc2.*": "encoder.layer.{}.output.dense.*",
    "layers.{}.final_layer_norm.*": "encoder.layer.{}.output.LayerNorm.*",
}


@validated
class _Options:
    """The options that shape a RoBERTa, with fairseq's defaults; no others, such as scaled embeddings."""

    encoder_layers: Count
    encoder_attention_heads: Count
    activation_fn: Literal["gelu", "gelu_accurate", "gelu_fast", "relu", "tanh"] = "gelu"
    no_scale_embedding: Literal[True] = True
    dropout: Share = 0.1
    attention_dropout: Share = 0.1


def import_fairseq(
    checkpoint: str | os.PathLike[str],
    *,
    dictionary: str | os.PathLike[str],
    out: str | os.PathLike[str],
    encoding: Encoding,
) -> None:
    """Converts a RoBERTa of fairseq to the folder of a `RobertaModel`, a backbone.

    Outputs and token ids are unchanged. The heads, for masked words and for classes, are dropped: a ranker does not
    use them. So is `activation_dropout`, which `RobertaModel` lacks and which does not affect outputs.

    Args:
        checkpoint: the `.pt` file, in old or new layout. No code in it is run.
        encoding: what splits texts into the symbols of the dictionary.

    Raises:
        CheckpointError: a file is missing, damaged, unsafe to read, of another kind of model, or does not belong to
            the others; or a tensor is missing or left over.
    """
    origin = os.fspath(checkpoint)
    states = read_checkpoint(checkpoint)
    options = _get_options(states, origin=origin)
    weights = _convert_weights(get_tensors(states, "model"), n_layers=options.encoder_layers, origin=origin)

    symbols = FairseqDictionary.read(dictionary, n_tokens=len(weights[WORDS]), origin=origin)
    tokenizer = build_tokenizer(encoding, symbols)
    weights[WORDS] = add_unknown_rows(weights[WORDS], unknown=UNKNOWN, size=tokenizer.get_vocab_size())
    roles = _ROLES | ({"mask_token": MASK} if MASK in symbols.ids else {})

    save_backbone(
        out,
        config=_build_config(weights, options),
        weights=weights,
        tokenizer=tokenizer,
        special_tokens=roles,
        origin=origin,
    )


def _get_options(states: Mapping[str, Any], *, origin: str) -> _Options:
    """The options of the model: `args` in older checkpoints, `cfg.model` in newer ones."""
    options = to_plain(states.get("args"))
    if options is None and isinstance(configuration := to_plain(states.get("cfg")), dict):
        options = configuration.get("model")
    if not isinstance(options, dict):
        raise CheckpointError(f"{origin}: not a checkpoint of fairseq (it has neither `args` nor `cfg.model`)")
    try:
        return _Options(**{field.name: options[field.name] for field in fields(_Options) if field.name in options})
    except ConfigError as error:
        raise CheckpointError(f"{origin}: its options describe no RoBERTa that can be imported: {error}") from None


def _convert_weights(state: Mapping[str, Tensor], *, n_layers: int, origin: str) -> dict[str, Tensor]:
    """The tensors of a `RobertaModel`."""
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}embed_tokens.weight" in state), None)
    if prefix is None:
        raise CheckpointError(f"{origin}: not a RoBERTa of fairseq (no `sentence_encoder.embed_tokens.weight`)")
    # The two layouts name the normalisation of the embeddings differently
    state = {
        name.replace("emb_layer_norm", "layernorm_embedding"): tensor
        for name, tensor in _split_projections(state).items()
    }
    names = {f"{prefix}{theirs}": ours for theirs, ours in expand_names(_NAMES, n_layers=n_layers).items()}
    weights = rename(state, names, left_out=(*_HEADS, f"{prefix}version"), origin=origin)
    return weights | {SEGMENTS: torch.zeros(1, weights[WORDS].size(1))}


def _split_projections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits `in_proj_*` into the projections of queries, keys and values, in this order."""
    separate: dict[str, Tensor] = {}
    for name, tensor in state.items():
        module, _, kind = name.rpartition("in_proj_")
        if module.endswith("self_attn.") and f"{module}q_proj.{kind}" not in state:
            projections = (f"{module}{letter}_proj.{kind}" for letter in "qkv")
            separate.update(zip(projections, tensor.tensor_split(3), strict=True))
        else:
            separate[name] = tensor
    return separate


def _build_config(weights: Mapping[str, Tensor], options: _Options) -> RobertaConfig:
    n_tokens, dim = weights[WORDS].shape
    return RobertaConfig(
        vocab_size=n_tokens,
        hidden_size=dim,
        num_hidden_layers=options.encoder_layers,
        num_attention_heads=options.encoder_attention_heads,
        intermediate_size=weights["encoder.layer.0.intermediate.dense.bias"].numel(),
        max_position_embeddings=len(weights[POSITIONS]),
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.attention_dropout,
        hidden_act=options.activation_fn,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=PAD,
        eos_token_id=2,
    )
