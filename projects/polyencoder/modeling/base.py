"""`RankerModel`: the contract of every architecture, used by trainer, checkpoints, indexes, export and server.

These never check a model's class or architecture name: differences are properties and methods here.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import max_length
from polyencoder.modeling.export_steps import CandidatesStep, ContextStep, Step
from polyencoder.modeling.lora import add_adapters, load_trained, merged, trained_state
from polyencoder.scoring import ContextEncoding, score
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.storage.names import CANDIDATES, CONTEXT
from polyencoder.text import TextEncoder
from polyencoder.text.tokens import TokenBatch

# What a configuration says of the encoder of candidates, which a model with foreign candidates lacks
_OF_CANDIDATES = ("share_encoders", "candidate_mlp", "candidate_map")

M = TypeVar("M", bound="TrainableModel")
R = TypeVar("R", bound="RankerModel")


class TrainableModel(nn.Module):
    """The interface of models that a `Trainer` trains: rankers, and models in pre-training."""

    inference_only: tuple[nn.Module, ...] = ()
    """Frozen modules that compute in training as in inference, without dropout."""

    @property
    def never_trained(self) -> list[nn.Module]:
        """Modules that stay what they are in any training."""
        return []

    def train(self: M, mode: bool = True) -> M:
        super().train(mode)
        for module in self.inference_only:
            module.eval()
        return self

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of a quantized model; None for other models."""
        return None

    @property
    def backbones(self) -> list[Backbone]:
        """The Hugging Face encoders of the model; none in a ConveRT."""
        return [module for module in self.modules() if isinstance(module, Backbone)]

    def why_not_trainable(self) -> str | None:
        """Why the weights cannot be trained, and what to do; None if they can."""
        if any(backbone.rounded for backbone in self.backbones):
            return "these weights were loaded in low precision: load the ranker without dtype to train it"
        return None

    # ---- LoRA

    is_adapted: bool = False
    """Whether it has adapters beside its encoders' frozen weights."""

    def add_adapters(self, **options: Any) -> None:
        """Trains adapters in the place of its encoders' weights; those of `inference_only` modules have none.

        Options and errors are those of `modeling.lora.add_adapters`.
        """
        frozen = {id(one) for module in self.inference_only for one in module.modules()}
        add_adapters(self, [one for one in self.backbones if id(one) not in frozen], **options)
        self.is_adapted = True

    def merged(self: M) -> M:
        """The model to save or export: itself or, with adapters, a copy in which they are merged."""
        if not self.is_adapted:
            return self
        model = merged(self)
        model.is_adapted = False
        return model

    def trained_state(self) -> dict[str, Tensor]:
        """The state to resume training from: all tensors or, with adapters, those that are trained."""
        return trained_state(self) if self.is_adapted else self.state_dict()

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores `trained_state`."""
        if self.is_adapted:
            load_trained(self, state)
        else:
            self.load_state_dict(state)

    def candidate_modules(self) -> list[nn.Module]:
        """The modules that a candidate's vector depends on; none without vectors."""
        return []

    @property
    def has_foreign_candidates(self) -> bool:
        """Whether candidates' vectors are another encoder's, so that no weights compute them."""
        return False

    def token_modules(self) -> list[nn.Module]:
        """The modules between the candidate tower and a candidate's token vectors."""
        return []

    def after_batch(self) -> None:
        """Updates what depends on the number of batches, not on gradients; called after each training batch."""

    def why_too_short(self, batches: int) -> str | None:
        """Why training needs more than this number of batches; None if it does not."""
        return None


class RankerModel(TrainableModel, ABC):
    """A ranker: scores token batches, or the vectors of contexts and candidates if these are encoded separately.

    `forward` is the whole model in one call, for training; its steps are `encode_context`, `encode_candidates` and
    `score`. A model with `has_vectors = False` reads contexts and candidates together and refuses the steps.
    """

    title: str
    """The architecture in messages and model cards: "bi-encoder"."""
    has_vectors: bool = True
    """Whether contexts and candidates are encoded separately, so that candidates can be indexed."""
    has_one_vector: bool = True
    """Whether a context has one vector, as a candidate has, so that they are text embeddings: `context_vectors`."""
    reads_pairs: bool = False
    """Whether `forward` compares the tokens of both texts. If the model also has vectors, these retrieve what
    `forward` reranks."""
    shortens: bool = False
    """Whether the first dimensions of its vectors can be used alone (`RankerConfig.vector_dim`)."""
    is_all_weights: bool = False
    """Whether `state_dict` is complete, so that loading needs no initial weights."""

    config: RankerConfig
    candidate_fingerprint: str | None = None
    """The fingerprint of the weights before they were cast; see `ranker.encoding`."""
    weights_fingerprints: Mapping[str, str] | None = None
    """Fingerprints of all weights before they were cast, by dtype."""
    foreign_vectors: Callable[[Tensor], Tensor] | None = None
    """Rows -> float32 [rows, dim], the vectors of candidates for `RankerConfig.foreign_dim`; while it is trained."""
    base: RankerModel | None
    """The ranker to whose score the model's own is added, for `RankerConfig.base`; never trained."""
    candidate_map: nn.Linear | None
    """The linear map of candidate vectors, for `RankerConfig.candidate_map`."""
    context_vector: str | None = None
    """For a multi-context model: which vector `encode_context` returns."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        self.config = config
        self.base = None

    @classmethod
    def check_config(cls, config: RankerConfig) -> None:
        """Raises ConfigError for a configuration that this architecture does not support.

        Texts must fit the backbone: context and candidate together, if they are read together.
        """
        if config.poly_attention == "multihead" and (cls.has_one_vector or not cls.has_vectors):
            raise ConfigError(
                f"poly_attention is 'multihead', which a {cls.title} does not have", argument="poly_attention"
            )
        if config.dense and (cls.reads_pairs or not cls.has_vectors):
            raise ConfigError(
                f"the encoder has Dense layers behind its pooling, which a {cls.title} does not have: give an encoder "
                "without them, or train a bi- or poly-encoder",
                argument="backbone",
            )
        if config.backbone.get("num_hidden_layers") == 0 and not cls.has_vectors:
            raise ConfigError(
                f"the encoder is a table of token embeddings, without the attention that a {cls.title} needs: train "
                "another architecture",
                argument="architecture",
            )
        if config.vector_dim is not None:
            cls.check_shortens(replace(config, candidate_map=False))  # one of short vectors may follow
        if config.foreign_dim is not None:
            contradicts = [name for name in _OF_CANDIDATES if getattr(config, name)]
            if contradicts or not cls.shortens:  # of single vectors
                what = contradicts[0] if contradicts else f"the architecture {config.architecture}"
                raise ConfigError(f"{what} needs an encoder of candidates, but their vectors are another encoder's")
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

    @property
    def has_foreign_candidates(self) -> bool:
        return self.config.foreign_dim is not None

    @classmethod
    def check_shortens(cls, config: RankerConfig) -> None:
        """Raises ConfigError unless the first dimensions of a model's vectors can be used alone."""
        why = f"a {cls.title} compares more than single vectors" if not cls.shortens else None
        if config.poly_attention == "multihead":
            why = "its multi-head attention reads all dimensions"
        elif config.foreign_dim is not None:
            why = "those of candidates are another encoder's"
        elif config.candidate_map:
            why = "its linear map of candidates' vectors mixes all dimensions"
        if why is not None:
            raise ConfigError(f"vectors cannot be shortened to their first dimensions: {why}", argument="vector_dim")

    @classmethod
    def completed(cls, config: RankerConfig, text: TextEncoder) -> RankerConfig:
        """Adds to a new model's configuration what depends on its tokenizer."""
        return config if config.prompt_tokens is None else replace(config, prompt_tokens=text.prompt_tokens)

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

    def scorer(
        self, candidates: TokenBatch, *, max_bytes: int, max_tokens: int | None = None
    ) -> Callable[[TokenBatch], Tensor]:
        """A function that scores contexts with all of these candidates, [batch, n], as `forward` does.

        For a model that `reads_pairs`, in inference. Computations on candidates alone are done
        once, and up to `max_bytes` of it are kept; a change of the weights makes the function stale.
        """
        return lambda contexts: self(contexts, candidates, max_tokens=max_tokens)

    @property
    @abstractmethod
    def dim(self) -> int:
        """The dimension of candidates' vectors."""

    @property
    def token_dim(self) -> int | None:
        """The dimension of the token vectors that `forward` compares, if those of each text depend on it alone.

        None of other models. Those of candidates are read once, by `read_candidates`, for many calls of `rescore`.
        """
        return None

    @abstractmethod
    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        """The vectors of each context: [batch, codes, dim] with their mask."""

    def context_vectors(self, contexts: ContextEncoding) -> Tensor:
        """The vector of each context, [batch, dim], of a model that `has_one_vector`."""
        return contexts.vectors.squeeze(1)

    @abstractmethod
    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        """One vector for each candidate: [n, dim]."""

    def score(self, context: ContextEncoding, candidates: Tensor) -> Tensor:
        """Scores [batch, n] of candidates [n, dim], shared by all contexts, or [batch, n, dim], each context's own."""
        return score(context, candidates, attention=self.config.poly_attention)

    def with_vector_dim(self: R, dim: int) -> R:
        """The same model, with the same weights, whose vectors keep their first `dim` dimensions."""
        config = replace(self.config, vector_dim=dim)
        self.check_shortens(config)
        if dim > self.dim:
            raise ConfigError(
                f"vector_dim is {dim}, but the model's vectors have {self.dim} dimensions", argument="vector_dim"
            )
        if self.candidate_fingerprint is not None:
            raise ConfigError("a model in 16 bits cannot be shortened: load it in float32", argument="vector_dim")
        model = copy.copy(self)
        model.config = config
        return model

    def shortened(self, vectors: Tensor, dim: int) -> Tensor:
        """Its vectors of contexts or candidates as [..., dim]: what it gives with this `vector_dim`."""
        raise InputError(f"a {self.title} has no vectors to shorten")

    def read_candidates(self, tokens: TokenBatch) -> list[TokenVectors]:
        """Encodes candidates for `rescore`: vectors alone, and with a `token_dim` those of tokens, too."""
        return [TokenVectors(vector, vector.new_empty(0, 0)) for vector in self.encode_candidates(tokens)]

    def rescore(self, contexts: ContextEncoding, candidates: Sequence[TokenVectors]) -> Tensor:
        """Scores [batch, n] as `forward` does, without its gradients, of candidates that were read before.

        The contexts are those of `encode_context`, with any `tokens`; there is at least one candidate.
        """
        return self.score(contexts, torch.stack([one.vector for one in candidates]))

    def token_weights(self, tokens: TokenBatch) -> Tensor | None:
        """The weight of each token's output in each context vector: [batch, codes, length]; None if unknown."""
        return None

    def pooled(self, tokens: TokenBatch) -> Tensor:
        """Encodes contexts for transfer to other tasks: [batch, size].

        Taken before a ranker's heads, scales and codes.

        Raises:
            InputError: this architecture has no pooled vectors.
        """
        raise InputError(f"a {self.title} has no pooled vectors: ask for another kind", argument="kind")

    def encode_objectives(self, tokens: TokenBatch) -> ContextEncoding:
        """The context vectors for training: `encode_context`, unless the model has several objectives."""
        return self.encode_context(tokens)

    def objectives(self, encoded: ContextEncoding) -> Mapping[str, ContextEncoding]:
        """Splits `encode_objectives` by objective; the reported one is first."""
        return {"": encoded}

    def check_has_vectors(self) -> None:
        """Raises InputError if contexts and candidates are read together."""
        if not self.has_vectors:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raises InputError: this model has no vectors."""
        raise InputError(f"a {self.title} has no vectors of contexts or candidates: it reads them together")

    # ---- the vectors of candidates in an index

    def set_candidate_map(self, layer: nn.Linear) -> None:
        """Sets the linear map of candidate vectors."""
        self.config = replace(self.config, candidate_map=True)
        self.candidate_map = layer
        self.candidate_fingerprint = self.weights_fingerprints = None  # those are of the model without it

    # ---- training

    @property
    def never_trained(self) -> list[nn.Module]:
        return [] if self.base is None else [self.base]

    @property
    def towers(self) -> tuple[Backbone, Backbone] | None:
        """The backbones of contexts and candidates, whose outputs `output_scaling` multiplies; None without any."""
        return None

    @property
    def next_utterance_head(self) -> nn.Linear | None:
        """The layer to initialise from the next-utterance head of pre-training; None without one."""
        return None

    # ---- storage

    def for_training(self) -> None:
        """Converts quantized weights for training; no-op for other models."""

    def for_inference(self) -> None:
        """Quantizes a quantization-aware model; no-op for other models."""

    def as_kept(self) -> RankerModel:
        """The model as stored: itself, or a quantized copy."""
        return self

    def take_form_of(self, weights: Mapping[str, Tensor]) -> None:
        """Converts the model to match these weights, quantized or not."""

    def kept_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of a model folder, floats in this dtype. ConfigError if the model cannot be stored in it."""
        weights = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}

    def quantize(self) -> None:
        """Turns on quantization-aware training. ConfigError if the architecture does not support it."""
        raise ConfigError(f"a {self.title} cannot be quantized")

    def continue_with(self, settings: Mapping[str, Any], *, origin: str) -> None:
        """Applies this architecture's own settings (`families.Family.settings`) to continued training.

        Raises:
            ConfigError: the settings contradict the model from `origin`.
        """

    # ---- export and description

    def export_steps(self) -> dict[str, Step]:
        """The steps to export as ONNX graphs, by file name.

        Raises:
            ConfigError: the model has no encoder of candidates.
        """
        if self.has_foreign_candidates:
            raise ConfigError("the model has no encoder of candidates, and graphs are of both sides")
        return {CONTEXT: ContextStep(self), CANDIDATES: CandidatesStep(self)}

    def describe(self) -> dict[str, str]:
        """Facts for the model card: "architecture", "encoder", and how scores are computed."""
        config, backbone = self.config, self.config.backbone
        return {
            "architecture": self.title,
            "encoder": f"{backbone['model_type']}, {backbone.get('num_hidden_layers')} layers, "
            f"{backbone.get('hidden_size')} dimensions, {backbone.get('vocab_size'):,} tokens",
            "reduction": config.reduction
            + (f" {config.reduction_outputs}" if config.reduction == "mean_first" else ""),
            "normalization": "vectors of length 1" if config.normalize else "none",
            "output scaling": f"{config.output_scaling:.4g}",
        } | _of_vectors(config)

    def describe_weights(self, dtype: str) -> str:
        """The number of weights, and the dtype they are stored in."""
        return f"{sum(p.numel() for p in self.parameters()):,}, stored in {dtype}"


def _of_vectors(config: RankerConfig) -> dict[str, str]:
    if config.vector_dim is not None:
        return {"vectors": f"their first {config.vector_dim} dimensions"}
    if config.foreign_dim is not None:
        return {"candidates": f"vectors of another encoder, fingerprint {config.foreign_fingerprint}"}
    return {}
