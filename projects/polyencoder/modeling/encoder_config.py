"""Configurations of Hugging Face encoders as plain dictionaries, stored in a ranker's configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from polyencoder.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Keys of a Hugging Face configuration about its origin, not the architecture.
_PROVENANCE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "_attn_implementation")


def get_backbone_config(model: PreTrainedModel) -> dict[str, Any]:
    """The configuration of a model as a plain dictionary that `build_backbone` takes."""
    return _to_plain(model.config)


# Names of the dropout rates in different families: of hidden states, of attention weights
_DROPOUT = ("hidden_dropout_prob", "mlp_dropout", "embedding_dropout", "dropout")
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")
DROPOUT = {*_DROPOUT, *_ATTENTION_DROPOUT}


def set_dropout(config: dict[str, Any], *, dropout: float | None, attention_dropout: float | None) -> dict[str, Any]:
    """Changes the dropout rates of an encoder's configuration; None keeps a rate."""
    rates = build_dropout_keys(dropout, attention_dropout)
    return config | {key: rate for key, rate in rates.items() if key in config}


def build_dropout_keys(dropout: float | None, attention_dropout: float | None) -> dict[str, float]:
    groups = ((_DROPOUT, dropout), (_ATTENTION_DROPOUT, attention_dropout))
    return {key: rate for keys, rate in groups if rate is not None for key in keys}


def build_scratch_config(
    *,
    vocabulary_size: int,
    dim: int,
    n_layers: int,
    n_heads: int,
    ffn_dim: int,
    n_positions: int,
    activation: str = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pad_id: int = 0,
    layer_norm_eps: float = 1e-5,
) -> dict[str, Any]:
    """The configuration of a BERT of these dimensions: ParlAI's `xlm` variant, a post-layer-norm encoder."""
    from transformers import BertConfig

    if dim % n_heads:
        raise ConfigError(f"dim is {dim}, which is not a multiple of n_heads, {n_heads}", argument="dim")
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=dim,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=ffn_dim,
        max_position_embeddings=n_positions,
        hidden_act=activation,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
        type_vocab_size=2,
        layer_norm_eps=layer_norm_eps,
        pad_token_id=pad_id,
        initializer_range=min(0.02 * (768 / dim) ** 0.5, 0.1),  # BERT's 0.02 at its 768 dimensions
    )
    return _to_plain(config)


def _to_plain(config: PretrainedConfig) -> dict[str, Any]:
    values = {key: value for key, value in config.to_dict().items() if key not in _PROVENANCE}
    # A JSON round trip, so that a configuration is equal before and after saving
    return json.loads(json.dumps(values))


def get_max_length(config: dict[str, Any]) -> int | None:
    """The maximum sequence length of an encoder in tokens; None without a limit."""
    positions = config.get("max_position_embeddings")
    if not positions:
        return None
    if not isinstance(positions, int):
        raise ConfigError(f"the backbone's max_position_embeddings is {positions!r:.60}; it must be a whole number")
    return int(positions) - get_first_position(config)


def get_first_position(config: dict[str, Any]) -> int:
    """The id of a sequence's first position: RoBERTa-like encoders count from the padding id + 1."""
    return (config.get("pad_token_id") or 0) + 1 if config["model_type"] in _POSITIONS_AFTER_PADDING else 0


_POSITIONS_AFTER_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
