"""`RankerModel`: the contract of every architecture, whose differences are properties and methods here."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.capabilities import Capabilities
from polyencoder.modeling.export_steps import CandidatesStep, ContextStep, Step
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.scoring import ContextEncoding, score
from polyencoder.scoring.exact import promote_dtype
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.storage.digests import compute_fingerprint, iter_weight_parts
from polyencoder.storage.names import CANDIDATES, CONTEXT
from polyencoder.text import TextEncoder
from polyencoder.text.tokens import TokenBatch

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone


class RankerModel(TrainableModel, Capabilities, ABC):
    """A ranker: scores token batches, or the vectors of contexts and candidates if these are encoded separately.

    `forward` is the whole model in one call, for training; its steps are `encode_context`, `encode_candidates` and
    `score`. A model with `has_vectors = False` reads contexts and candidates together and refuses the steps.
    """

    config: RankerConfig
    candidate_fingerprint: str | None = None
    """The fingerprint of the weights before they were cast; see `ranker.encoding`."""
    weights_fingerprints: Mapping[str, str] | None = None
    """Fingerprints of all weights before they were cast, by dtype."""
    foreign_vectors: Callable[[Tensor], Tensor] | None = None
    """Rows -> float32 [rows, dim], the vectors of candidates for `RankerConfig.foreign_dim`, during training."""
    base: RankerModel | None
    """The ranker whose score is added to the model's, for `RankerConfig.base`; never trained."""
    context_vector: str | None = None
    """For a multi-context model: which vector `encode_context` returns."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        self.config = config
        self.base = None

    @property
    def has_foreign_candidates(self) -> bool:
        return self.config.foreign_dim is not None

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

    def score_objectives(
        self,
        contexts: TokenBatch,
        candidates: TokenBatch,
        index: Tensor | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Mapping[str, Tensor]:
        """The trained scores, by objective, of a model that `reads_pairs`; the first are the scores of `forward`."""
        return {"": self(contexts, candidates, index, max_tokens=max_tokens)}

    @property
    @abstractmethod
    def dim(self) -> int:
        """The dimension of candidates' vectors."""

    @property
    def token_dim(self) -> int | None:
        """The dimension of the token vectors that `forward` compares, if they depend on their own text alone.

        None for other models. `read_candidates` computes the candidates' token vectors once, for many `rescore` calls.
        """
        return None

    @property
    def token_fingerprint(self) -> str | None:
        """Digest of the weights between candidate tower and token vectors; None without such vectors."""
        if self.token_dim is None:
            return None
        return compute_fingerprint(
            [part for module in self.token_modules() for part in iter_weight_parts(module.state_dict())]
        )

    @abstractmethod
    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        """The vectors of each context: [batch, codes, dim] with their mask."""

    def get_context_vectors(self, contexts: ContextEncoding) -> Tensor:
        """The vector of each context, [batch, dim], of a model that `has_one_vector`."""
        return contexts.vectors.squeeze(1)

    @abstractmethod
    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        """One vector for each candidate: [n, dim]."""

    def score(self, context: ContextEncoding, candidates: Tensor) -> Tensor:
        """Scores [batch, n], at least float32, of candidates [n, dim], shared by all contexts, or [batch, n, dim]."""
        device, attention = context.vectors.device.type, self.config.poly_attention
        if not torch.is_autocast_enabled(device):
            return score(context, candidates, attention=attention)
        with torch.autocast(device, enabled=False):
            wide = replace(context, tokens=None).to(dtype=promote_dtype(context.vectors.dtype))
            return score(wide, candidates, attention=attention)

    def truncate(self, dim: int) -> Self:
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

    def truncate_vectors(self, vectors: Tensor, dim: int) -> Tensor:
        """Shortens the model's vectors to [..., dim], as a model with this `vector_dim` computes them."""
        raise InputError(f"a {self.title} has no vectors to shorten")

    def read_candidates(self, tokens: TokenBatch) -> list[TokenVectors]:
        """Encodes candidates for `rescore`: their vectors and, with a `token_dim`, the vectors of their tokens."""
        return [TokenVectors(vector, vector.new_empty(0, 0)) for vector in self.encode_candidates(tokens)]

    def rescore(self, contexts: ContextEncoding, candidates: Sequence[TokenVectors]) -> Tensor:
        """Scores [batch, n] as `forward` does, without its gradients, of candidates that were read before.

        The contexts are outputs of `encode_context`, with their `tokens`; there is at least one candidate.
        """
        return self.score(contexts, torch.stack([candidate.vector for candidate in candidates]))

    @property
    def has_new_terms(self) -> bool:
        """Whether the weights of the score's terms are still those of a new model, so that training fits them first."""
        return False

    term_weights: Any
    """The weights of the score's terms, [k], of a model that `has_new_terms`."""

    def build_weighted_scorer(
        self, contexts: TokenBatch, candidates: TokenBatch, index: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Term weights, [k] in float64 -> scores [batch, n], of a model that `has_new_terms`, for fitting the weights.

        Takes the arguments of `forward`; texts are encoded once, without gradients.
        """
        raise NotImplementedError

    def token_weights(self, tokens: TokenBatch) -> Tensor | None:
        """The weight of each token's output in each context vector: [batch, codes, length]; None if unknown."""
        return None

    def pooled(self, tokens: TokenBatch) -> Tensor:
        """Encodes contexts for transfer to other tasks, before heads: [batch, size]. InputError: no such vectors."""
        raise InputError(f"a {self.title} has no pooled vectors: ask for another kind", argument="kind")

    def encode_objectives(self, tokens: TokenBatch) -> ContextEncoding:
        """The context vectors for training: `encode_context`, unless the model has several objectives."""
        return self.encode_context(tokens)

    def split_objectives(self, encoded: ContextEncoding) -> Mapping[str, ContextEncoding]:
        """Splits `encode_objectives` by objective; the reported one is first."""
        return {"": encoded}

    def check_has_vectors(self) -> None:
        """Raises InputError if contexts and candidates are read together."""
        if not self.has_vectors:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raises InputError: this model has no vectors."""
        raise InputError(f"a {self.title} has no vectors of contexts or candidates: it reads them together")

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

    def grow_vocabulary(self, size: int) -> bool:
        """Adds embeddings for new tokens up to `size`, also to the base; True if it had to."""
        if not self.backbones or size <= self.config.backbone["vocab_size"]:
            return False
        for backbone in self.backbones:
            backbone.resize(size)
        if self.base is not None:
            self.base.grow_vocabulary(size)
        base = None if self.base is None else self.base.config
        self.config = replace(self.config, backbone=self.config.backbone | {"vocab_size": size}, base=base)
        return True

    # ---- storage

    def prepare_for_training(self) -> None:
        """Converts quantized weights for training; no-op for other models."""

    def prepare_for_inference(self) -> None:
        """Quantizes a quantization-aware model; no-op for other models."""

    def copy_for_saving(self) -> RankerModel:
        """The model as stored: itself, or a quantized copy."""
        return self

    def match_quantization(self, weights: Mapping[str, Tensor]) -> None:
        """Converts the model to match these weights, quantized or not."""

    def get_state_dict_to_save(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of a model folder, floats in this dtype. ConfigError if the model cannot be stored in it."""
        weights = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}

    def quantize(self) -> None:
        """Turns on quantization-aware training. ConfigError if the architecture does not support it."""
        raise ConfigError(f"a {self.title} cannot be quantized: only a ConveRT can", argument="quantize")

    def continue_with(self, settings: Mapping[str, Any], *, origin: str) -> None:
        """Applies this architecture's own settings in continued training. ConfigError: they contradict `origin`."""

    # ---- export and description

    def export_steps(self) -> dict[str, Step]:
        """The steps to export as ONNX graphs, by file name. ConfigError: the model has no encoder of candidates."""
        if self.has_foreign_candidates:
            raise ConfigError("the model has no encoder of candidates, and graphs are of both sides")
        return {CONTEXT: ContextStep(self), CANDIDATES: CandidatesStep(self)}

    def export_weights(self) -> dict[str, Tensor]:
        """The weights, by name, with which scores are computed from the outputs of graphs."""
        return {}

    def describe(self) -> dict[str, str]:
        """Facts for the model card: "architecture", "encoder", and how scores are computed."""
        config, backbone = self.config, self.config.backbone
        facts = {
            "architecture": self.title,
            "encoder": f"{backbone['model_type']}, {backbone.get('num_hidden_layers')} layers, "
            f"{backbone.get('hidden_size')} dimensions, {backbone.get('vocab_size'):,} tokens",
            "reduction": config.reduction
            + (f" {config.reduction_outputs}" if config.reduction == "mean_first" else ""),
            "normalization": "vectors of length 1" if config.normalize else "none",
            "output scaling": f"{config.output_scaling:.4g}",
        }
        if config.vector_dim is not None:
            facts["vectors"] = f"their first {config.vector_dim} dimensions"
        if config.foreign_dim is not None:
            facts["candidates"] = f"vectors of another encoder, fingerprint {config.foreign_fingerprint}"
        return facts

    def describe_weights(self, dtype: str) -> str:
        """The number of weights, and the dtype they are stored in."""
        return f"{sum(parameter.numel() for parameter in self.parameters()):,}, stored in {dtype}"
