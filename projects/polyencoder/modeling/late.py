"""The late-interaction encoder: a bi-encoder that also compares the tokens and turns of the texts it ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.modeling.activation_checkpointing import Pieces, apply_in_pieces
from polyencoder.modeling.capabilities import LateCapabilities
from polyencoder.modeling.codes import TURN_TERMS, TURN_WEIGHTS, compute_turn_means, number_turns, parse_turn_end
from polyencoder.modeling.export_steps import LateCandidatesStep, LateContextStep, Step
from polyencoder.modeling.mode import in_evaluation
from polyencoder.modeling.separable import BiEncoder, TurnVectors, join_weights
from polyencoder.modeling.tracing import is_traced
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.exact import promote_dtype
from polyencoder.scoring.tokens import (
    Texts,
    TokenVectors,
    compute_max_similarities,
    multiply,
    pack_candidates,
    stack_texts,
)
from polyencoder.storage.names import CANDIDATES, CONTEXT
from polyencoder.text import TextEncoder
from polyencoder.text.batches import cut_into_batches, group_lengths
from polyencoder.text.tokens import TokenBatch

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone

TERMS = ("vectors", "candidate tokens", "context tokens", "best turn", "latest turn")
"""The terms of the score, in the order of its weights."""
NEW_WEIGHTS = (1.0, 0.0, 0.0, 0.0, 0.0)  # the bi-encoder's score
DOT_SCALE = 20.0  # of the cosines beside unscaled dot products: a sentence encoder's
BATCH_TOKENS = 1 << 14  # maximum tokens per batch in inference
TOKENS_IN_MEMORY = 1 << 16  # of candidates whose vectors are in memory at once in inference


class LateEncoder(LateCapabilities, BiEncoder):
    """score(x, c) = w_1 x.c + s (w_2 M(c, x) + w_3 M(x, c) + w_4 max_j cos(y_j, c) + w_5 cos(y_m, c)), w_i >= 0.

    x and c are the bi-encoder's vectors of context and candidate, y_1..y_m the means of the outputs of each turn of the
    context, of length 1, and s is the bi-encoder's scale of a cosine. M(a, b) = sum_i p_i max_j cos(a_i,
    b_j) is MaxSim over the tokens of two texts (Khattab and Zaharia, "ColBERT", SIGIR 2020, Section 3), as a mean: the
    weights p of a candidate's tokens are a softmax over a trained product with each, of a context's tokens all equal.
    Like a poly-encoder, it compares a candidate with several vectors of a context, but without trained codes.

    w begins as (1, 0, 0, 0, 0), so that a new model ranks as the bi-encoder that it starts from; its
    training begins by fitting w to the first batch (`training.term_weights`).

    An index holds c, and compares it with m vectors of the context, as a poly-encoder of turns does:

        z_j = v_1 x + |x| (v_2 y_j + v_3 y_m)

    Training adds the loss of this score to the loss of the whole score.
    """

    def __init__(self, config: RankerConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.token_map = None
        if config.token_dim is not None:
            self.token_map = nn.Linear(backbone.dim, config.token_dim, bias=False)
            nn.init.orthogonal_(self.token_map.weight)  # cosines change little
        self.token_weight = nn.Parameter(torch.zeros(config.token_dim or backbone.dim))
        self.term_weights = nn.Parameter(torch.tensor(NEW_WEIGHTS))
        self.search_weights = nn.Parameter(torch.tensor(TURN_WEIGHTS))

    @classmethod
    def completed(cls, config: RankerConfig, text: TextEncoder) -> RankerConfig:
        return replace(super().completed(config, text), turn_end=parse_turn_end(text.separator_ids))

    @property
    def new_parameters(self) -> list[nn.Parameter]:
        return [self.term_weights, self.search_weights]

    def after_batch(self) -> None:
        with torch.no_grad():
            self.term_weights.clamp_(min=0)

    @property
    def _scale(self) -> float:
        return self.config.output_scaling**2 if self.config.normalize else DOT_SCALE

    # ---- its terms

    @property
    def has_new_terms(self) -> bool:
        return tuple(self.term_weights.tolist()) == NEW_WEIGHTS

    @torch.no_grad()
    def build_weighted_scorer(
        self, contexts: TokenBatch, candidates: TokenBatch, index: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        with in_evaluation(self):
            read = self._read_all(self.read_contexts, contexts, max_tokens=None)
            terms = self._compute_terms(
                read, self._read_all(self._read_candidate, candidates, max_tokens=None), index
            ).double()
        return lambda weights: terms @ weights

    @property
    def token_dim(self) -> int:
        return self.token_weight.numel()

    def token_modules(self) -> list[nn.Module]:
        return [] if self.token_map is None else [self.token_map]

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        read = self.read_contexts(tokens)
        return replace(self.encode_for_search(tokens, read), tokens=read.split())

    def encode_for_search(self, tokens: TokenBatch, read: Texts) -> ContextEncoding:
        """The vectors z_1..z_m of contexts, by which an index is searched."""
        numbers = torch.arange(read.turns.size(1), device=read.turns.device)
        mask = numbers <= self._find_latest_turn(tokens)[1]
        pooled = read.vectors.unsqueeze(1)
        lengths = _to_float32(pooled).norm(dim=-1, keepdim=True)
        return TurnVectors(pooled, lengths * read.turns, mask).weigh(self.search_weights)

    def get_context_vectors(self, contexts: ContextEncoding) -> Tensor:
        assert contexts.tokens is not None
        return torch.cat([text.vectors for text in contexts.tokens])

    def read_candidates(self, tokens: TokenBatch) -> list[TokenVectors]:
        vectors, token_vectors = self.build_compared_vectors(self.candidate_tower(tokens), tokens.mask)
        lengths = tokens.mask.sum(1).clamp(min=1).tolist()
        return [TokenVectors(vectors[row], token_vectors[row, :length]) for row, length in enumerate(lengths)]

    @torch.no_grad()
    def rescore(self, contexts: ContextEncoding, candidates: Sequence[TokenVectors]) -> Tensor:
        assert contexts.tokens is not None
        read = stack_texts(contexts.tokens)
        scores = torch.empty(contexts.batch_size, len(candidates), device=read.tokens.device)
        num_columns = max(1, TOKENS_IN_MEMORY // max(len(candidate.tokens) for candidate in candidates))
        for group in group_lengths([len(candidate.tokens) for candidate in candidates]):
            for columns in torch.tensor(group).split(num_columns):
                vectors, tokens, mask = pack_candidates([candidates[column] for column in columns.tolist()])
                texts = self._build_candidate_texts(vectors, tokens.to(read.tokens.dtype), mask)
                for rows in torch.arange(len(scores)).split(max(1, TOKENS_IN_MEMORY // read.tokens.size(1))):
                    block = (rows.unsqueeze(1), columns)
                    scores[block] = self.compare(read.select(rows.to(scores.device)), texts).float()
        return scores

    # ---- scores

    def forward(
        self,
        contexts: TokenBatch,
        candidates: TokenBatch,
        index: Tensor | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Tensor:
        """Scores [batch, n] of each context's candidates; see `RankerModel.forward`. Rows of `index` below 0: -inf.

        In training, the activations of at most `max_tokens` tokens of contexts or of candidates are kept at once,
        and computed again for the gradients; the vectors of all tokens are kept. Otherwise the vectors of at most
        `TOKENS_IN_MEMORY` tokens of contexts are in memory, and of as many of candidates.
        """
        if torch.is_grad_enabled():
            return self.score_objectives(contexts, candidates, index, max_tokens=max_tokens)[""]
        if index is None:
            return self._score_all(contexts, candidates, max_tokens=max_tokens)
        used, inverse = index.clamp(min=0).unique(return_inverse=True)
        if len(used) <= 2 * index.size(1):  # mostly the same candidates: each is read once for all contexts
            scores = self._score_all(contexts, candidates.select(used), max_tokens=max_tokens)
            return scores.gather(1, inverse).masked_fill(index < 0, -torch.inf)
        scores = torch.full(index.shape, -torch.inf, device=contexts.ids.device)
        width = candidates.ids.size(1) * index.size(1)  # of each context's own candidates
        chunk_size = max(1, TOKENS_IN_MEMORY // max(contexts.ids.size(1), width))
        for rows in torch.arange(len(contexts), device=scores.device).split(chunk_size):
            read = self._read_all(self.read_contexts, contexts.select(rows), max_tokens=max_tokens)
            used, inverse = index[rows].clamp(min=0).unique(return_inverse=True)
            texts = self._read_all(self._read_candidate, candidates.select(used), max_tokens=max_tokens)
            scores[rows] = self.compare(read, texts, inverse).float().masked_fill(index[rows] < 0, -torch.inf)
        return scores

    def score_objectives(
        self,
        contexts: TokenBatch,
        candidates: TokenBatch,
        index: Tensor | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Mapping[str, Tensor]:
        fits = max_tokens is None or max(contexts.ids.numel(), candidates.ids.numel()) <= max_tokens
        pieces = None if fits else Pieces(self)
        read = _read(self.read_contexts, contexts, pieces, max_tokens=max_tokens)
        texts = _read(self._read_candidate, candidates, pieces, max_tokens=max_tokens)
        with torch.autocast(contexts.ids.device.type, enabled=False):
            search, vectors = self.encode_for_search(contexts, read), _to_float32(texts.vectors)
            scores = self.score(
                search.to(dtype=vectors.dtype), vectors if index is None else vectors[index.clamp(min=0)]
            )
        scores = scores if index is None else scores.masked_fill(index < 0, -torch.inf)
        return {"": self.compare(read, texts, index), "search": scores}

    def _score_all(self, contexts: TokenBatch, candidates: TokenBatch, *, max_tokens: int | None) -> Tensor:
        """Scores [batch, n] of all candidates, in inference."""
        scores = torch.empty(len(contexts), len(candidates), device=contexts.ids.device)
        parts = cut_into_batches(candidates.mask.sum(1).tolist(), max_tokens=TOKENS_IN_MEMORY)
        chunk_size = max(1, TOKENS_IN_MEMORY // max(1, contexts.ids.size(1)))
        for rows in torch.arange(len(contexts), device=scores.device).split(chunk_size):
            read = self._read_all(self.read_contexts, contexts.select(rows), max_tokens=max_tokens)
            for part in parts:
                columns = torch.tensor(part, device=scores.device)
                texts = self._read_all(self._read_candidate, candidates.select(columns), max_tokens=max_tokens)
                scores[rows.unsqueeze(1), columns] = self.compare(read, texts).float()
        return scores

    def _read_all(self, read: Callable[[TokenBatch], Texts], tokens: TokenBatch, *, max_tokens: int | None) -> Texts:
        return _read(read, tokens, Pieces(self), max_tokens=min(max_tokens or BATCH_TOKENS, BATCH_TOKENS))

    def compare(self, contexts: Texts, candidates: Texts, index: Tensor | None = None) -> Tensor:
        """Scores [batch, n] of candidates: all of them for every context, or those in `index` [batch, n]."""
        terms = self._compute_terms(contexts, candidates, index)
        with torch.autocast(terms.device.type, enabled=False):  # which would round the scores themselves
            scores = terms @ self.term_weights.to(terms.dtype)
        return scores if index is None else scores.masked_fill(index < 0, -torch.inf)

    def _compute_terms(self, contexts: Texts, candidates: Texts, index: Tensor | None = None) -> Tensor:
        """The terms of scores before they are weighted, in the order of `TERMS`: [batch, n, 5]."""
        if index is not None:
            candidates = candidates.select(index.clamp(min=0))
        forth, back = compute_max_similarities(contexts.tokens, contexts.weights, candidates.tokens, candidates.weights)
        with torch.autocast(forth.device.type, enabled=False):
            vectors, candidate_vectors = _to_float32(contexts.vectors), _to_float32(candidates.vectors)
            dots = self.score(ContextEncoding(vectors.unsqueeze(1)), candidate_vectors)
            turns = multiply(contexts.turns, candidates.turns.squeeze(-2))  # [batch, turns, n]
            cosines = (forth, back, turns.amax(1), turns[:, -1])
            return torch.stack([dots, *(self._scale * cosine.to(dots.dtype) for cosine in cosines)], dim=-1)

    # ---- vectors to compare

    def read_contexts(self, tokens: TokenBatch) -> Texts:
        return self.build_context_texts(tokens, self.context_tower(tokens))

    def build_context_texts(self, tokens: TokenBatch, outputs: Tensor) -> Texts:
        """The vectors of contexts from the outputs of their tokens, [batch, length, dim]."""
        mask = tokens.mask
        weights = mask.to(promote_dtype(outputs.dtype)) / mask.sum(1, keepdim=True).clamp(min=1)
        vectors = self._scale_vectors(self._pool_context(outputs, mask))
        return Texts(vectors, self._project_tokens(outputs, mask), weights, self._average_turns(tokens, outputs))

    def _read_candidate(self, tokens: TokenBatch) -> Texts:
        return self.build_candidate_texts(self.candidate_tower(tokens), tokens.mask)

    def build_candidate_texts(self, outputs: Tensor, mask: Tensor) -> Texts:
        """The vectors of candidates from the outputs of their tokens, [n, length, dim]."""
        return self._build_candidate_texts(*self.build_compared_vectors(outputs, mask), mask)

    def build_compared_vectors(self, outputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of candidates and of their tokens, from the tokens' outputs."""
        return self._finish_candidates(self._pool_candidate(outputs, mask)), self._project_tokens(outputs, mask)

    def _build_candidate_texts(self, vectors: Tensor, tokens: Tensor, mask: Tensor) -> Texts:
        with torch.autocast(tokens.device.type, enabled=False):
            logits = (_to_float32(tokens) * self.token_weight).sum(-1) * tokens.size(-1) ** 0.5
        weights = torch.softmax(logits.masked_fill(~mask, torch.finfo(logits.dtype).min), dim=-1).masked_fill(~mask, 0)
        return Texts(vectors, tokens, weights, F.normalize(_to_float32(vectors), dim=-1).unsqueeze(1))

    def _project_tokens(self, outputs: Tensor, mask: Tensor) -> Tensor:
        tokens = F.normalize(outputs if self.token_map is None else self.token_map(outputs), dim=-1)
        first = tokens[:, :1].masked_fill(~mask[:, :1].unsqueeze(-1), 0)  # of a text without any token
        return tokens.where(mask.unsqueeze(-1), first)

    def _average_turns(self, tokens: TokenBatch, outputs: Tensor) -> Tensor:
        """The mean output of each turn, of length 1: [batch, turns, dim]; a shorter context repeats its latest turn."""
        token_turns, last = self._find_latest_turn(tokens)
        # A graph has as many for every batch: one for each token is enough.
        num_turns = outputs.size(1) if is_traced() else int(last.max()) + 1 if len(last) else 1
        numbers = torch.arange(num_turns, device=outputs.device)
        return F.normalize(_to_float32(compute_turn_means(outputs, token_turns, torch.minimum(numbers, last))), dim=-1)

    def _find_latest_turn(self, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        """The turn of each token, [batch, length], and each context's latest turn, [batch, 1]."""
        token_turns = number_turns(tokens.ids, tokens.mask, end=self.config.turn_end)
        return token_turns, token_turns.amax(1, keepdim=True).clamp(min=0)

    # ---- export and description

    def export_steps(self) -> dict[str, Step]:
        super().export_steps()  # raises ConfigError without an encoder of candidates
        return {CONTEXT: LateContextStep(self), CANDIDATES: LateCandidatesStep(self)}

    def export_weights(self) -> dict[str, Tensor]:
        return {
            "term_weights": self.term_weights,
            "scale": torch.tensor([self._scale]),
            "token_weight": self.token_weight,
        }

    def describe(self) -> dict[str, str]:
        return {
            **super().describe(),
            "weights in the score": join_weights(self.term_weights, TERMS),
            "weights in searches": join_weights(self.search_weights, TURN_TERMS),
        }


def _to_float32(numbers: Tensor) -> Tensor:
    """Converts to at least float32, also under autocast."""
    return numbers.to(promote_dtype(numbers.dtype))


def _read(
    read: Callable[[TokenBatch], Texts], tokens: TokenBatch, pieces: Pieces | None, *, max_tokens: int | None
) -> Texts:
    parts, order = apply_in_pieces(read, tokens, pieces, max_tokens=max_tokens)
    return parts[0] if order is None else stack_texts(parts).select(order)
