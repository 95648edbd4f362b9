"""The bi- and the poly-encoder: separate towers for contexts and candidates."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.capabilities import BiCapabilities, PolyCapabilities
from polyencoder.modeling.codes import TURN_TERMS, TURN_WEIGHTS, build_codes, parse_turn_end
from polyencoder.modeling.export_steps import ContextStep, Step
from polyencoder.modeling.multihead import CandidateAttention
from polyencoder.modeling.pooling import build_dense, reduce
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.exact import promote_dtype
from polyencoder.storage.names import CONTEXT
from polyencoder.text import TextEncoder
from polyencoder.text.tokens import TokenBatch

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone


class TwoTowers(RankerModel):
    """Two towers that start with equal weights, or one with `share_encoders` (Section 4.2)."""

    def __init__(self, config: RankerConfig, backbone: Backbone) -> None:
        super().__init__(config)
        self.context_tower = backbone
        shares_tower = config.share_encoders or config.foreign_dim is not None
        self.own_candidate_tower = None if shares_tower else copy.deepcopy(backbone)
        self.dense = build_dense(backbone.dim, config.dense)
        if config.vector_dim is not None and config.vector_dim > self._full_dim:
            raise ConfigError(
                f"vector_dim is {config.vector_dim}, but the model's vectors have {self._full_dim} dimensions",
                argument="vector_dim",
            )
        self.own_candidate_dense = None if shares_tower else copy.deepcopy(self.dense)
        self.foreign_map = (
            None if config.foreign_dim is None else nn.Linear(self._full_dim, config.foreign_dim, bias=False)
        )
        self.candidate_mlp = build_perceptron(self._full_dim) if config.candidate_mlp else None

    @property
    def candidate_tower(self) -> Backbone:
        return self.own_candidate_tower or self.context_tower

    @property
    def towers(self) -> tuple[Backbone, Backbone]:
        return self.context_tower, self.candidate_tower

    @property
    def dim(self) -> int:
        return self.config.foreign_dim or self.config.vector_dim or self._full_dim

    @property
    def _full_dim(self) -> int:
        return self.config.dense[-1].size if self.config.dense else self.context_tower.dim

    def pooled(self, tokens: TokenBatch) -> Tensor:
        """The context tower's reduced outputs behind its layers, neither scaled nor normalized: [batch, dim]."""
        outputs = self.context_tower(tokens, first_only=self._first_only)
        return self._pool_context(outputs, tokens.mask)

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        if self.has_foreign_candidates:
            assert self.foreign_vectors is not None  # else they have no tokens
            return self.foreign_vectors(tokens.ids[:, 0].cpu()).to(tokens.ids.device)
        outputs = self.candidate_tower(tokens, first_only=self._first_only)
        return self._finish_candidates(self._pool_candidate(outputs, tokens.mask))

    def _finish_candidates(self, vectors: Tensor) -> Tensor:
        return self._scale_vectors(vectors if self.candidate_mlp is None else self.candidate_mlp(vectors))

    def candidate_modules(self) -> list[nn.Module]:
        if self.has_foreign_candidates:
            return []
        heads = (self.own_candidate_dense or self.dense, self.candidate_mlp)
        return [self.candidate_tower, *(module for module in heads if module is not None)]

    @property
    def _first_only(self) -> bool:
        return self.config.reduction == "first" and self.config.prompt_tokens is None

    def _pool_context(self, outputs: Tensor, mask: Tensor) -> Tensor:
        vectors = self._reduce(outputs, mask, skip=(self.config.prompt_tokens or (0, 0))[0])
        return self._map_vectors(vectors)

    def _map_vectors(self, vectors: Tensor) -> Tensor:
        """A context's vectors behind the tower, [..., dim of the tower] -> [..., dim]."""
        for layer in (self.dense, self.foreign_map):
            vectors = vectors if layer is None else layer(vectors)
        return vectors

    def _pool_candidate(self, outputs: Tensor, mask: Tensor) -> Tensor:
        vectors = self._reduce(outputs, mask, skip=(self.config.prompt_tokens or (0, 0))[1])
        dense = self.own_candidate_dense or self.dense
        return vectors if dense is None else dense(vectors)

    def _reduce(self, outputs: Tensor, mask: Tensor, *, skip: int) -> Tensor:
        config = self.config
        return reduce(outputs, mask, reduction=config.reduction, first_m=config.reduction_outputs, skip=skip)

    def _scale_vectors(self, vectors: Tensor) -> Tensor:
        vectors = vectors[..., : self.config.vector_dim]
        if self.config.normalize:
            vectors = nn.functional.normalize(vectors, dim=-1)
        return vectors * self.config.output_scaling

    def truncate_vectors(self, vectors: Tensor, dim: int) -> Tensor:
        vectors = vectors[..., :dim]
        if self.config.normalize:
            vectors = nn.functional.normalize(vectors, dim=-1) * self.config.output_scaling
        return vectors


def build_perceptron(dim: int) -> nn.Sequential:
    """The MLP that ParlAI's `share_encoders` adds to the candidate encoder: [n, dim] -> [n, dim]."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))


class TurnVectors(NamedTuple):
    """The vectors whose weighted sums are a poly-encoder's context vectors of the kind `turns`.

    pooled: the bi-encoder's, [batch, 1, dim]. turns: of the latest turns, the latest last, [batch, m, dim], with their
    mask.
    """

    pooled: Tensor
    turns: Tensor
    mask: Tensor | None

    def weigh(self, weights: Tensor) -> ContextEncoding:
        """The context vectors, for the three weights."""
        whole, turn, latest = weights
        vectors = whole * self.pooled + turn * self.turns + latest * self.turns[:, -1:]
        return ContextEncoding(vectors.to(torch.promote_types(self.pooled.dtype, weights.dtype)), self.mask)


class BiEncoder(BiCapabilities, TwoTowers):
    """score = red(T1(context)) . red(T2(candidate)) (Section 4.2)."""

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        vectors = self._scale_vectors(self.pooled(tokens))
        return ContextEncoding(vectors.unsqueeze(1), None)


class PolyEncoder(PolyCapabilities, TwoTowers):
    """Encodes the context as m vectors; each candidate attends over them before the dot product (Section 4.4).

    The paper's vectors are trained codes over the outputs, or some of the outputs. With the context vectors `turns`,
    which are not the paper's, there is a vector for each of the latest m turns,

        z_j = w_1 x + w_2 y_j + w_3 y_m

    where x is the bi-encoder's vector of the context, and y_1..y_m are the means of the outputs of each turn, of the
    length of x. w begins as (0.5, 0.3, 0.2): with the reduction `mean` a new model ranks a context of one turn as the
    bi-encoder that it starts from. docs/benchmarks/accuracy.md compares this start with others.
    """

    @classmethod
    def completed(cls, config: RankerConfig, text: TextEncoder) -> RankerConfig:
        config = super().completed(config, text)
        if config.context_vectors != "turns":
            return config
        if not text.separator_ids:
            raise ConfigError(
                "context_vectors is turns, but nothing separates the turns of a context: turn_separator must be "
                "sep or newline",
                argument="context_vectors",
            )
        return replace(config, turn_end=parse_turn_end(text.separator_ids))

    def __init__(self, config: RankerConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.codes = build_codes(
            config.context_vectors,
            config.n_codes,
            backbone.dim,
            attention=config.codes_attention,
            heads=config.codes_attention_heads,
            turn_end=config.turn_end,
        )
        self.term_weights = nn.Parameter(torch.tensor(TURN_WEIGHTS)) if config.context_vectors == "turns" else None
        multihead = config.poly_attention == "multihead"
        self.attention = CandidateAttention(self.dim, config.poly_attention_heads) if multihead else None

    @property
    def new_parameters(self) -> list[nn.Parameter]:
        return [*self.codes.parameters(), *([] if self.term_weights is None else [self.term_weights])]

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        weighted = None if self.term_weights is None else self._average_turns(tokens).weigh(self.term_weights)
        return self._attend(self._attend_codes(tokens) if weighted is None else weighted)

    def _attend(self, context: ContextEncoding) -> ContextEncoding:
        return context if self.attention is None else self.attention(context)

    def token_weights(self, tokens: TokenBatch) -> Tensor:
        return self.codes.compute_weights(self._compute_outputs(tokens), tokens)

    def _attend_codes(self, tokens: TokenBatch) -> ContextEncoding:
        context: ContextEncoding = self.codes(self._compute_outputs(tokens), tokens)
        if self._scales_outputs:
            return replace(context, vectors=context.vectors[..., : self.config.vector_dim])
        return ContextEncoding(self._scale_vectors(self._map_vectors(context.vectors)), context.mask)

    def _average_turns(self, tokens: TokenBatch) -> TurnVectors:
        outputs = self.context_tower(tokens)
        means: ContextEncoding = self.codes(outputs, tokens)
        pooled = self._scale_vectors(self._pool_context(outputs, tokens.mask)).unsqueeze(1)
        turns = self._map_vectors(means.vectors)
        dtype = promote_dtype(pooled.dtype)
        lengths = pooled.to(dtype).norm(dim=-1, keepdim=True)
        return TurnVectors(pooled, lengths * nn.functional.normalize(turns.to(dtype), dim=-1), means.mask)

    def _compute_outputs(self, tokens: TokenBatch) -> Tensor:
        """The outputs that the codes attend over; unscaled if each vector is mapped or normalized first."""
        outputs: Tensor = self.context_tower(tokens)
        return outputs * self.config.output_scaling if self._scales_outputs else outputs

    @property
    def _scales_outputs(self) -> bool:
        return not self.config.normalize and self.dense is None and self.foreign_map is None

    def export_steps(self) -> dict[str, Step]:
        if self.attention is not None:
            raise InputError(
                f"a {self.title} with poly_attention 'multihead' is not exported to ONNX: load it with backend torch"
            )
        masked = ("codes_mask",) if self.config.context_vectors != "codes" else ()
        return {**super().export_steps(), CONTEXT: ContextStep(self, outputs=("vectors", *masked))}

    def describe(self) -> dict[str, str]:
        described = {**super().describe(), "architecture": f"{self.title}, {self.config.n_codes} context vectors"}
        if self.term_weights is None:
            return described
        return {**described, "context vectors": f"of the latest turns: {join_weights(self.term_weights, TURN_TERMS)}"}


def join_weights(weights: Tensor, names: Sequence[str]) -> str:
    """The weights with their names, as a model card lists them."""
    return ", ".join(f"{weight:.2f} {name}" for weight, name in zip(weights.tolist(), names, strict=True))
