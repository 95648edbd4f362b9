"""The cross-encoder: context and candidate in one sequence, one score out (Section 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import InputError
from polyencoder.modeling.activation_checkpointing import Pieces
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.capabilities import CrossCapabilities
from polyencoder.modeling.export_steps import ScorerStep, Step
from polyencoder.modeling.pooling import build_dense, reduce
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.exact import promote_dtype
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.storage.names import SCORER
from polyencoder.text.batches import cut_into_batches
from polyencoder.text.context import join_pair
from polyencoder.text.tokens import TokenBatch, pad

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone

PAIR_TOKENS = 1 << 14  # maximum tokens per batch in inference, with padding
BASE_CONTEXTS = 16  # contexts that a residual cross-encoder's base scores at once


class CrossEncoder(CrossCapabilities, RankerModel):
    """score = W h_1 of T([context, candidate]), segment 0 for the context's tokens and 1 for the candidate's.

    If it starts from a trained reranker, the reranker's hidden layer is between h_1 and W (`RankerConfig.dense`).

    A residual cross-encoder (`RankerConfig.base`) adds this to the score of the ranker that it started from, which is
    frozen: score = base(context, candidate) + W h_1. W is 0 at first, so that it ranks as its base before training. The
    base reads the same tokens, as two texts.
    """

    def __init__(self, config: RankerConfig, backbone: Backbone) -> None:
        super().__init__(config)
        self.tower = backbone
        self.dense = build_dense(backbone.dim, config.dense)
        self.linear = nn.Linear(config.dense[-1].size if config.dense else backbone.dim, 1)
        if config.residual:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    @property
    def towers(self) -> tuple[Backbone, Backbone]:
        return self.tower, self.tower

    @property
    def next_utterance_head(self) -> nn.Linear | None:
        return self.linear if self.config.reduction == "first" and self.dense is None else None

    @property
    def dim(self) -> int:
        self.refuse()

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        self.refuse()

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        self.refuse()

    def forward(
        self,
        contexts: TokenBatch,
        candidates: TokenBatch,
        index: Tensor | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Tensor:
        """Scores [batch, n] of each context's candidates.

        `index` [batch, n] gives each context's candidates as rows of `candidates`; negative rows are padding and score
        -inf. Without it every context is scored with every candidate. Pairs are batched by length.

        `max_tokens` limits the tokens of a batch, with padding; in training it turns on gradient caching. None keeps
        all activations in training, and means `PAIR_TOKENS` in inference.
        """
        if index is None:
            index = torch.arange(len(candidates), device=contexts.ids.device).expand(len(contexts), -1)
        if self.base is not None and not torch.is_grad_enabled() and not any(p.any() for p in self.linear.parameters()):
            # a residual cross-encoder before training
            return self._compute_base_scores(contexts, candidates, index).masked_fill(index < 0, -torch.inf)
        rows, columns = (index >= 0).nonzero(as_tuple=True)
        pairs = self._join_pairs(contexts, candidates, rows.tolist(), index[rows, columns].tolist())
        lengths = [len(ids) for ids, _ in pairs]
        unlimited = sum(lengths) * len(lengths) if torch.is_grad_enabled() else PAIR_TOKENS
        batches = cut_into_batches(lengths, max_tokens=max_tokens or unlimited)
        device = contexts.ids.device
        scores = torch.full(index.shape, -torch.inf, device=device)
        pieces = Pieces(self) if len(batches) > 1 else None
        for batch in batches:
            tokens = self._pad_pairs([pairs[i] for i in batch]).to(device)
            values = self._score_pairs(tokens) if pieces is None else pieces(self._score_pairs, tokens)
            positions = torch.tensor(batch, device=device)
            scores = scores.index_put((rows[positions], columns[positions]), values.to(scores.dtype))
        return scores if self.base is None else scores + self._compute_base_scores(contexts, candidates, index)

    @torch.no_grad()
    def _compute_base_scores(self, contexts: TokenBatch, candidates: TokenBatch, index: Tensor) -> Tensor:
        """The base's scores [batch, n] of each context's candidates; any number where a row of `index` is below 0.

        `BASE_CONTEXTS` contexts at once, each compared with the candidates of all of them: all contexts with all
        candidates would be the square of the batch, in time and memory.
        """
        if not index.numel():
            return torch.zeros(index.shape, device=index.device)
        parts = torch.arange(len(contexts), device=index.device).split(BASE_CONTEXTS)
        return torch.cat([self._score_with_base(contexts.select(rows), candidates, index[rows]) for rows in parts])

    def _score_with_base(self, contexts: TokenBatch, candidates: TokenBatch, index: Tensor) -> Tensor:
        assert self.base is not None
        used, inverse = index.clamp(min=0).unique(return_inverse=True)
        tokens_used = candidates.select(used)
        read: dict[int, TokenVectors] = {}
        for batch in cut_into_batches(tokens_used.mask.sum(1).tolist(), max_tokens=PAIR_TOKENS):
            tokens = tokens_used.select(torch.tensor(batch, device=used.device))
            read |= zip(batch, self.base.read_candidates(tokens), strict=True)
        encoded = self.base.encode_context(contexts)
        with torch.autocast(index.device.type, enabled=False):  # scores stay in float32
            dtype = promote_dtype(encoded.vectors.dtype)
            token_vectors = [TokenVectors(*(part.to(dtype) for part in read[row])) for row in range(len(used))]
            scores = self.base.rescore(encoded.to(dtype=dtype), token_vectors)
        return scores.gather(1, inverse)

    def export_steps(self) -> dict[str, Step]:
        if self.base is not None:
            raise InputError(
                f"a residual {self.title} is not exported to ONNX, for its score is added to that of a "
                f"{self.base.title}: load it with backend torch"
            )
        return {SCORER: ScorerStep(self)}

    def describe(self) -> dict[str, str]:
        if self.base is None:
            return super().describe()
        return {**super().describe(), "added to": f"the score of the {self.base.title} that it started from"}

    def _join_pairs(
        self, contexts: TokenBatch, candidates: TokenBatch, rows: list[int], columns: list[int]
    ) -> list[tuple[list[int], list[int]]]:
        """Token ids and segments of each (context, candidate)."""
        context_ids, candidate_ids, config = contexts.list_sequences(), candidates.list_sequences(), self.config
        start, longest = config.candidate_start, config.pair_truncate
        return [
            join_pair(context_ids[row], candidate_ids[column], start=start, max_tokens=longest)
            for row, column in zip(rows, columns, strict=True)
        ]

    def _pad_pairs(self, pairs: list[tuple[list[int], list[int]]]) -> TokenBatch:
        ids, segments = zip(*pairs, strict=True)
        return pad(ids, pad_id=int(self.config.backbone.get("pad_token_id") or 0), segments=segments)

    def _score_pairs(self, tokens: TokenBatch) -> Tensor:
        """Scores pair sequences: [pairs]."""
        config = self.config
        outputs = self.tower(tokens, first_only=config.reduction == "first")
        vectors = reduce(outputs, tokens.mask, reduction=config.reduction, first_m=config.reduction_outputs)
        with torch.autocast(vectors.device.type, enabled=False):  # scores stay in float32
            return self.score_vectors(vectors.to(self.linear.weight.dtype))

    def score_vectors(self, vectors: Tensor) -> Tensor:
        """The scores [pairs] of the pairs' reduced outputs [pairs, dim]."""
        vectors = vectors if self.dense is None else self.dense(vectors)
        return self.linear(vectors * self.config.output_scaling).squeeze(-1)
