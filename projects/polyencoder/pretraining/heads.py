"""The model that is pre-trained: an encoder with two heads, one for masked words, one for the next utterance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.cpu.modules import for_cpu
from polyencoder.text import TokenBatch

__all__ = ["MaskedWords", "PretrainingModel"]


class MaskedWords(nn.Module):
    """BERT's head: a layer, its activation and normalization, then products with the embeddings of all words."""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        config = BertConfig(hidden_size=dim, hidden_act="gelu", layer_norm_eps=1e-12)
        self.transform = BertPredictionHeadTransform(config)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.transform.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.transform.dense.bias)
        for_cpu(self)

    def forward(self, outputs: Tensor, words: Tensor) -> Tensor:
        """Logits [n, vocabulary] of outputs [n, dim] and word embeddings [vocabulary, dim]."""
        return nn.functional.linear(self.transform(outputs), words, self.bias)


class PretrainingModel(nn.Module):
    """An encoder, `masked_words`, tied to its embeddings, and `next_utterance`, a linear layer on its first output.

    The latter has the shape of a cross-encoder's last layer: one score, whose sigmoid says how likely a response
    follows.
    """

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder
        words = self._words()
        if words.size(1) != encoder.dim:
            raise ConfigError(
                f"a {encoder.model.config.model_type} has word embeddings of {words.size(1)} numbers and outputs of "
                f"{encoder.dim}, so masked words cannot be tied to them; use BERT, RoBERTa or MiniLM",
                argument="backbone",
            )
        self.masked_words = MaskedWords(encoder.dim, len(words))
        self.next_utterance = nn.Linear(encoder.dim, 1)
        nn.init.normal_(self.next_utterance.weight, std=0.02)
        nn.init.zeros_(self.next_utterance.bias)

    def masked_logits(self, tokens: TokenBatch, chosen: Tensor) -> Tensor:
        """Logits [n, vocabulary] of the words at the n places that are True in `chosen` [batch, length]."""
        logits: Tensor = self.masked_words(self.encoder(tokens)[chosen], self._words())
        return logits

    def next_scores(self, tokens: TokenBatch) -> Tensor:
        """Scores [batch] of the responses: above 0 where they follow."""
        scores: Tensor = self.next_utterance(self.encoder(tokens)[:, 0]).squeeze(-1)
        return scores

    def _words(self) -> Tensor:
        table: Any = self.encoder.model.get_input_embeddings()
        words: Tensor = table.weight
        return words
