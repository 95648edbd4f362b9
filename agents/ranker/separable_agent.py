"""Agents whose candidates have vectors of their own: each is encoded once for as long as the model stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from parlai.agents.ranker.args import add_cache_args
from parlai.agents.ranker.fixed import FixedCandidates
from parlai.agents.ranker.indexed import IndexedAgent
from parlai.agents.ranker.learning.distillation import DistillingAgent
from parlai.agents.ranker.learning.hard_negatives import HardNegativesAgent
from parlai.agents.ranker.learning.joint import Step
from parlai.agents.ranker.vectors import VectorCache
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.encoding import encode_candidates
from polyencoder.errors import ConfigError
from polyencoder.text import TokenBatch
from polyencoder.training.distributed import gather_vectors
from polyencoder.training.gradient_caching import encode


class SeparableAgent(DistillingAgent, HardNegativesAgent, IndexedAgent):
    """Base of the bi- and the poly-encoder agent."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_cache_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if opt.get("grad_cache", 0) < 0:
            raise ConfigError(f"--grad-cache {opt['grad_cache']}: give a number of contexts, or 0 to turn it off")
        self._vectors: VectorCache = shared["vectors"] if shared else VectorCache()
        super().__init__(opt, shared)
        if not shared and opt.get("interactive_mode") and self.fixed is not None:
            with torch.no_grad():
                self._fixed_vectors(self.fixed)  # before the first prompt, not behind it

    def share(self) -> dict[str, Any]:
        return {**super().share(), "vectors": self._vectors}

    def forget_vectors(self) -> None:
        super().forget_vectors()
        self._vectors.clear()
        if self.fixed is not None:
            self.fixed.clear()

    def learning_scores(self, contexts: TokenBatch, step: Step) -> Tensor:
        text = self.dict.text
        limit = self.opt.get("grad_cache", 0) * text.config.longest_context
        candidates = text.pad(text.candidate_ids(step.own_texts)).to(contexts.ids.device)  # may be none
        encoded, vectors = encode(self.ranker, contexts, candidates, max_tokens=limit or None)
        if step.counts is not None:
            vectors = gather_vectors(vectors, step.counts)
        scores: Tensor = self.ranker.score(encoded, vectors if step.pool.index is None else vectors[step.pool.index])
        return scores

    def eval_scores(self, contexts: TokenBatch, pool: CandidatePool) -> Tensor:
        encoded = self.ranker.encode_context(contexts)
        return torch.cat([self.ranker.score(encoded, part) for part in self._parts(pool)], dim=1)

    def _parts(self, pool: CandidatePool) -> list[Tensor]:
        """The vectors of the candidates in pieces, each [n, dim] for all examples or [batch, n, dim]."""
        if self.fixed is None or pool.index is not None or self.eval_candidates != "fixed":
            vectors = self._vectors.get(pool.texts, self._encode)
            return [vectors if pool.index is None else vectors[pool.index]]
        fixed = self._fixed_vectors(self.fixed)
        own = pool.texts[len(self.fixed.texts) :]
        return [*fixed, self._vectors.get(own, self._encode)] if own else fixed

    def _fixed_vectors(self, fixed: FixedCandidates) -> list[Tensor]:
        self.model.eval()
        on_disk = self.opt["encode_candidate_vecs"] and not self._should_initialize_optimizer()
        return fixed.vectors(self._library_ranker, encode=self._encode, on_disk=on_disk)

    def _encode(self, texts: Sequence[str]) -> Tensor:
        batch_size = self.opt.get("encode_candidate_vecs_batchsize", 256)
        return encode_candidates(self.ranker, self.dict.text, texts, batch_size=batch_size)
