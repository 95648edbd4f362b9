"""`RankerModel`: the contract of every architecture, by which trainer, checkpoints, indexes, export and server use it.

None of them asks for a class or compares an architecture's name: what differs is a property or a method here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import max_length
from polyencoder.modeling.export_steps import CANDIDATES, CONTEXT, CandidatesStep, ContextStep, Step
from polyencoder.scoring import ContextEncoding, score
from polyencoder.text import TextEncoder
from polyencoder.text.tokens import TokenBatch

__all__ = ["RankerModel", "TrainableModel"]


class TrainableModel(nn.Module):
    """The interface that a `Trainer` needs of a model: a ranker, or one that is pre-trained."""

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss of a model that is trained for 16 bits; None for other models."""
        return None

    @property
    def backbones(self) -> list[Backbone]:
        """The Hugging Face encoders of the model; none in a ConveRT."""
        return [module for module in self.modules() if isinstance(module, Backbone)]

    def why_not_trainable(self) -> str | None:
        """Why the weights cannot be trained in the form that they have, and what to do; None if they can."""
        if any(backbone.rounded for backbone in self.backbones):
            return "these weights were rounded when they were loaded: load the ranker without dtype to train it"
        return None

    def after_batch(self) -> None:
        """Update what follows the batches of a training, not the gradients; called after each of them."""

    def why_too_short(self, batches: int) -> str | None:
        """Why a training should have more than this number of batches; None if nothing is known against it."""
        return None


class RankerModel(TrainableModel, ABC):
    """A ranker: scores of token batches, and of the vectors of contexts and candidates where these are encoded apart.

    `forward` is the whole model in one call, in training. The steps `encode_context`, `encode_candidates` and `score`
    are its parts; a model with `has_vectors = False` reads contexts and candidates together, and refuses them.
    """

    title: str
    """The architecture in messages and model cards: "bi-encoder"."""
    has_vectors: bool = True
    """Whether contexts and candidates are encoded apart, so that candidates can be indexed."""
    has_one_vector: bool = True
    """Whether a context has one vector, as a candidate has: then these are embeddings of texts."""
    reads_pairs: bool = False
    """Whether a text's score for another is made of the tokens of both, by `forward`, and not by `score` of their
    vectors; of a model that has vectors, too, these find what such scores then order."""
    is_all_weights: bool = False
    """Whether `state_dict` holds all that the model consists of: loading it then needs no initial weights."""

    config: RankerConfig
    candidate_fingerprint: str | None = None
    """The fingerprint of the weights before they were rounded; see `ranker.encoding`."""
    weights_fingerprints: Mapping[str, str] | None = None
    """The same of all weights, by dtype."""
    candidate_map: nn.Linear | None
    """The map behind the vectors of candidates, for `RankerConfig.candidate_map`."""
    context_vector: str | None = None
    """Of a model with several contexts: which of their vectors `encode_context` gives."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def check_config(cls, config: RankerConfig) -> None:
        """Raise ConfigError for a configuration of which no model of this class can be built.

        Texts may not be longer than the backbone takes: a context and a candidate together, if they are read so.
        """
        if config.poly_attention == "multihead" and (cls.has_one_vector or not cls.has_vectors):
            raise ConfigError(
                f"poly_attention is 'multihead', which a {cls.title} does not have", argument="poly_attention"
            )
        if config.candidate_map and not cls.has_vectors:
            raise ConfigError(f"candidate_map is true, but a {cls.title} has no vectors of candidates")
        limit = max_length(config.backbone)
        longest = config.text.longest_context + (0 if cls.has_vectors else config.text.label_truncate)
        if limit is not None and longest > limit:
            raise ConfigError(
                f"the backbone takes at most {limit} tokens, but sequences may have {longest}; "
                "give a smaller text_truncate or label_truncate",
                argument="text_truncate",
            )
        if limit is not None and config.text.label_truncate > limit:
            raise ConfigError(
                f"the backbone takes at most {limit} tokens, but candidates may have {config.text.label_truncate}; "
                "give a smaller label_truncate",
                argument="label_truncate",
            )

    @classmethod
    def completed(cls, config: RankerConfig, text: TextEncoder) -> RankerConfig:
        """The configuration of a new model with what only its tokenizer knows."""
        return config

    # ---- scores

    def forward(
        self,
        contexts: TokenBatch,
        candidates: TokenBatch,
        index: Tensor | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Tensor:
        """Scores [batch, n] of each context's candidates.

        `index` [batch, n] names each context's candidates by their row in `candidates`; without it every context is
        scored with every candidate. `max_tokens` limits the memory of a model that reads them together.
        """
        vectors = self.encode_candidates(candidates)
        return self.score(self.encode_context(contexts), vectors if index is None else vectors[index])

    @property
    @abstractmethod
    def dim(self) -> int:
        """The dimension of candidates' vectors."""

    @abstractmethod
    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        """The vectors of each context: [batch, codes, dim] with their mask."""

    @abstractmethod
    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        """One vector for each candidate: [n, dim]."""

    def score(self, context: ContextEncoding, candidates: Tensor) -> Tensor:
        """Scores [batch, n] of candidates [n, dim], shared by all contexts, or [batch, n, dim], each context's own."""
        return score(context, candidates, attention=self.config.poly_attention)

    def token_weights(self, tokens: TokenBatch) -> Tensor | None:
        """The weight of each token's output in each context vector: [batch, codes, length]; None if unknown."""
        return None

    def pooled(self, tokens: TokenBatch) -> Tensor:
        """One vector [batch, size] of each context's tokens that transfers to other tasks.

        It comes before the last networks, scales and codes of a ranker.

        Raises:
            InputError: this ranker does not give it.
        """
        raise InputError(f"a {self.title} has no pooled vectors: ask for another kind", argument="kind")

    def encode_objectives(self, tokens: TokenBatch) -> ContextEncoding:
        """The vectors of contexts that training scores: those of `encode_context`, unless it has several objectives."""
        return self.encode_context(tokens)

    def objectives(self, encoded: ContextEncoding) -> Mapping[str, ContextEncoding]:
        """The context vectors of each objective, by its name, from `encode_objectives`; the reported one is first."""
        return {"": encoded}

    def check_has_vectors(self) -> None:
        """Raise InputError if contexts and candidates are read together."""
        if not self.has_vectors:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise InputError, as a model without vectors does when it is asked for them."""
        raise InputError(f"a {self.title} has no vectors of contexts or candidates: it reads them together")

    # ---- the vectors of candidates in an index

    def candidate_modules(self) -> list[nn.Module]:
        """The modules whose weights decide which vector a candidate has."""
        return []

    def set_candidate_map(self, layer: nn.Linear) -> None:
        """Put this map behind the vectors of candidates, in the place of an earlier one."""
        self.config = replace(self.config, candidate_map=True)
        self.candidate_map = layer
        self.candidate_fingerprint = self.weights_fingerprints = None  # those are of the model without it

    # ---- training

    @property
    def towers(self) -> tuple[Backbone, Backbone] | None:
        """The backbones of contexts and of candidates, whose outputs `output_scaling` multiplies; None without any."""
        return None

    @property
    def next_utterance_head(self) -> nn.Linear | None:
        """The layer that can begin with the weights of pre-training's head for next utterances."""
        return None

    # ---- storage

    def for_training(self) -> None:
        """Change to the form whose weights are trained, if there are two."""

    def for_inference(self) -> None:
        """Change to the form that is kept on disk, if there are two."""

    def as_kept(self) -> RankerModel:
        """The model in the form that is kept on disk: itself, or a copy."""
        return self

    def take_form_of(self, weights: Mapping[str, Tensor]) -> None:
        """Change to the form that these weights are of, if there are two."""

    def kept_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of a model folder, numbers of floating point in this dtype. ConfigError if it cannot be."""
        weights = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}

    def quantize(self) -> None:
        """Have embeddings in 8 bits and other weights in 16. ConfigError for a model without such a form."""
        raise ConfigError(f"a {self.title} cannot be quantized")

    def continue_with(self, settings: Mapping[str, Any], *, origin: str) -> None:
        """Apply the settings of a further training that only this architecture has (`families.Family.settings`).

        Raises:
            ConfigError: the model, which comes from `origin`, contradicts them.
        """

    # ---- export and description

    def export_steps(self) -> dict[str, Step]:
        """The steps that become ONNX graphs, by the names of their files."""
        return {CONTEXT: ContextStep(self), CANDIDATES: CandidatesStep(self)}

    def describe(self) -> dict[str, str]:
        """Facts of the model for its card: "architecture", "encoder", and how it makes scores."""
        config, backbone = self.config, self.config.backbone
        return {
            "architecture": self.title,
            "encoder": f"{backbone['model_type']}, {backbone.get('num_hidden_layers')} layers, "
            f"{backbone.get('hidden_size')} dimensions, {backbone.get('vocab_size'):,} tokens",
            "reduction": config.reduction
            + (f" {config.reduction_outputs}" if config.reduction == "mean_first" else ""),
            "normalization": "vectors of length 1" if config.normalize else "none",
            "output scaling": f"{config.output_scaling:.4g}",
        }

    def describe_weights(self, dtype: str) -> str:
        """The number of weights, and how a folder that was asked for in `dtype` keeps them."""
        return f"{sum(p.numel() for p in self.parameters()):,}, kept in {dtype}"
