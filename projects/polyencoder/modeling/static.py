"""Static encoders, sentence-transformers' `StaticEmbedding`: token embeddings without layers.

A text's vector is the mean of its tokens' embeddings, without start and end tokens. `StaticModel` has the interface of
a transformers model, so everything else treats it as a transformer whose outputs are its embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding


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


def static_model(embedding: StaticEmbedding) -> StaticModel:
    """A static encoder's table as a model, in float32."""
    model = StaticModel(StaticConfig(embedding.num_embeddings, embedding.embedding_dim))
    with torch.no_grad():
        model.embeddings.weight.copy_(embedding.embedding.weight)
    return model.eval()


def static_tokenizer(embedding: StaticEmbedding) -> tuple[Tokenizer, dict[str, Any]]:
    """A static encoder's tokenizer and its layout as fields of a `TextConfig`.

    Nothing surrounds or separates texts. The padding token, which is masked, is also that of a text without tokens.
    """
    tokenizer = embedding.tokenizer
    pad = next((pad for pad in ("[PAD]", "<pad>") if tokenizer.token_to_id(pad) is not None), tokenizer.id_to_token(0))
    tokens = dict.fromkeys(("start_token", "end_token", "pad_token", "empty_token"), pad)
    return tokenizer, {**tokens, "separator": "", "surround": False}


AutoConfig.register(StaticConfig.model_type, StaticConfig, exist_ok=True)
AutoModel.register(StaticConfig, StaticModel, exist_ok=True)
