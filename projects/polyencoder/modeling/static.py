"""Static encoders, as sentence-transformers' `StaticEmbedding` and model2vec: token embeddings without layers.

A text's vector is the mean of its tokens' embeddings, without start and end tokens. `StaticModel` has the interface of
a transformers model, so everything else treats it as a transformer whose outputs are its embeddings.
"""

from __future__ import annotations

import os
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from polyencoder.errors import ConfigError, first_line
from polyencoder.modeling.sentence_encoder import static_file


class StaticConfig(PretrainedConfig):
    """The size of a static encoder's table."""

    model_type = "static_embedding"

    def __init__(self, vocab_size: int = 30_000, hidden_size: int = 256, **options: Any) -> None:
        super().__init__(**options)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, 0


class StaticModel(PreTrainedModel):
    """Token ids [batch, length] to their embeddings [batch, length, dim]."""

    config_class = StaticConfig
    base_model_prefix = "static"

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings = value

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds)


def load_static(name: str | os.PathLike[str]) -> StaticModel | None:
    """Loads a static encoder's table in float32; None if its folder or hub id has another kind of encoder.

    Raises:
        ConfigError: its file cannot be read.
    """
    path = static_file(name, "model.safetensors")
    if path is None:
        return None
    try:
        weights = safetensors.torch.load_file(path)
        table = weights["embedding.weight"] if "embedding.weight" in weights else _of_model2vec(weights)
        model = StaticModel(StaticConfig(*table.shape))
    except Exception as error:  # safetensors and torch raise many types for damaged files
        raise ConfigError(f"backbone {name}: not a static encoder's table ({first_line(error)})") from None
    with torch.no_grad():
        model.embeddings.weight.copy_(table)
    return model.eval()


def _of_model2vec(weights: dict[str, Tensor]) -> Tensor:
    """The table of a model2vec file: rows that tokens may share (`mapping`), and a weight for each token."""
    table = weights["embeddings"].float()
    table = table[weights["mapping"].long()] if "mapping" in weights else table
    return table * weights["weights"].float()[:, None] if "weights" in weights else table


def static_tokenizer(name: str | os.PathLike[str]) -> tuple[Tokenizer, dict[str, Any]] | None:
    """Loads a static encoder's tokenizer and its layout as fields of a `TextConfig`; None for other encoders.

    Nothing surrounds or separates texts. The padding token, which is masked, is also that of a text without tokens.
    """
    path = static_file(name, "tokenizer.json")
    if path is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the Rust library raises plain Exception
        raise ConfigError(f"backbone {name}: not a readable tokenizer.json ({first_line(error)})") from None
    pad = next((one for one in ("[PAD]", "<pad>") if tokenizer.token_to_id(one) is not None), tokenizer.id_to_token(0))
    tokens = dict.fromkeys(("start_token", "end_token", "pad_token", "empty_token"), pad)
    return tokenizer, {**tokens, "separator": "", "surround": False}


AutoConfig.register(StaticConfig.model_type, StaticConfig, exist_ok=True)
AutoModel.register(StaticConfig, StaticModel, exist_ok=True)
