"""The pre-training model: an encoder with heads for masked words and next utterances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from polyencoder.config import NextName, Reduction
from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.cpu.modules import replace_layers
from polyencoder.modeling.pooling import reduce
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.text import TokenBatch


class MaskedWords(nn.Module):
    """BERT's head: a layer, its activation and normalization, then products with the embeddings of all words."""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        config = BertConfig(hidden_size=dim, hidden_act="gelu", layer_norm_eps=1e-12)
        self.transform = BertPredictionHeadTransform(config)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.transform.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.transform.dense.bias)
        replace_layers(self)

    def forward(self, outputs: Tensor, words: Tensor) -> Tensor:
        """Logits [n, vocabulary] of outputs [n, dim] and word embeddings [vocabulary, dim]."""
        return nn.functional.linear(self.transform(outputs), words, self.bias)


class PretrainingModel(TrainableModel):
    """An encoder, `masked_words`, tied to its embeddings, and `next_utterance`, a linear layer on its first output.

    The linear layer has the shape of a cross-encoder's last layer: one score, whose sigmoid says how likely a response
    follows. It exists with `next` "yes-no"; to find a context's response among others takes no weights, but a
    `reduction` of outputs to the vector of a text, which `normalize` scales to the same length for all texts.
    """

    def __init__(
        self, encoder: Backbone, *, next: NextName = "yes-no", reduction: Reduction = "first", normalize: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.reduction, self.normalize = encoder, reduction, normalize
        words = self._get_word_embeddings()
        if words.size(1) != encoder.dim:
            raise ConfigError(
                f"a {encoder.model.config.model_type} has word embeddings of {words.size(1)} numbers and outputs of "
                f"{encoder.dim}, so masked words cannot be tied to them; use BERT, RoBERTa or MiniLM",
                argument="backbone",
            )
        self.masked_words = MaskedWords(encoder.dim, len(words))
        self.next_utterance: nn.Linear | None = None
        if next == "yes-no":
            self.next_utterance = nn.Linear(encoder.dim, 1)
            nn.init.normal_(self.next_utterance.weight, std=0.02)
            nn.init.zeros_(self.next_utterance.bias)

    def compute_masked_logits(self, tokens: TokenBatch, chosen: Tensor) -> Tensor:
        """Logits [n, vocabulary] at the n positions that are True in `chosen` [batch, length]."""
        return self.masked_words(self.encoder(tokens)[chosen], self._get_word_embeddings())

    def score_next(self, tokens: TokenBatch) -> Tensor:
        """Scores [batch] of the responses: above 0 if they follow."""
        assert self.next_utterance is not None
        return self.next_utterance(self.encoder(tokens)[:, 0]).squeeze(-1)

    def score_responses(self, tokens: TokenBatch, *, contexts: int) -> Tensor:
        """Scores [contexts, responses], float32, of sequences: first the contexts, then the responses.

        Dot products of vectors, as of a bi-encoder, divided by the root of their dimensions: an output has about that
        length, so that scores are some 16 times the cosine of two outputs of 256 dimensions, and just that times the
        cosine with `normalize`.
        """
        length = self.encoder.dim**0.5
        vectors = reduce(self.encoder(tokens), tokens.mask, reduction=self.reduction)
        with torch.autocast(vectors.device.type, enabled=False):  # bfloat16 has none between 16 and 16.125
            vectors = vectors.float()
            if self.normalize:
                vectors = nn.functional.normalize(vectors, dim=-1) * length
            return vectors[:contexts] @ vectors[contexts:].T / length

    def _get_word_embeddings(self) -> Tensor:
        table: Any = self.encoder.model.get_input_embeddings()
        return table.weight
