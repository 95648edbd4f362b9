"""Agents whose candidates have vectors of their own: each is encoded once for as long as the model stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from parlai.agents.ranker.args import add_cache_args, add_distillation_args, add_hard_negative_args
from parlai.agents.ranker.fixed import FixedCandidates
from parlai.agents.ranker.indexed import IndexedAgent
from parlai.agents.ranker.vectors import VectorCache
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.encoding import encode_candidates
from polyencoder.text import TokenBatch


class SeparableAgent(IndexedAgent):
    """Base of the bi- and the poly-encoder agent."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_distillation_args(parser)
        add_hard_negative_args(parser)
        add_cache_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
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
