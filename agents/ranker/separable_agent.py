"""Agents whose candidates have vectors of their own: each is encoded once for as long as the model stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from parlai.agents.ranker.agent import Ranked, RankerAgent, contexts_of
from parlai.agents.ranker.args import add_cache_args, add_distillation_args, add_hard_negative_args, add_index_args
from parlai.agents.ranker.fixed import FixedCandidates, VectorCache
from parlai.agents.ranker.indexed import IndexSearch, check_index_options, distinct
from parlai.agents.ranker.sources import INDEX
from parlai.core.metrics import AverageMetric
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch
from torch import Tensor

from polyencoder.calibration import Calibration
from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.ranker.encoding import encode_candidates
from polyencoder.text import TokenBatch


class SeparableAgent(RankerAgent):
    """Base of the bi- and the poly-encoder agent: scores candidates by their vectors, or searches an index of them."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_index_args(parser)
        add_distillation_args(parser)
        add_hard_negative_args(parser)
        add_cache_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._vectors: VectorCache = shared["vectors"] if shared else VectorCache()
        self._search: IndexSearch | None = shared["search"] if shared else None
        super().__init__(opt, shared)
        if not shared and opt.get("interactive_mode") and self.fixed is not None:
            with torch.no_grad():
                self._fixed_vectors(self.fixed)  # before the first prompt, not behind it

    def share(self) -> dict[str, Any]:
        return {**super().share(), "vectors": self._vectors, "search": self._search}

    def forget_vectors(self) -> None:
        self._vectors.clear()
        self._search = None
        if self.fixed is not None:
            self.fixed.clear()

    # ---- candidates that are listed

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

    # ---- candidates in an index, in the place of fixed ones

    def settle_candidates(self, opt: Opt) -> None:
        check_index_options(opt)
        super().settle_candidates(opt)

    def set_fixed_candidates(self, shared: dict[str, Any] | None) -> None:
        super().set_fixed_candidates(shared)
        if not shared and self.eval_candidates == INDEX:
            ranker = self._library_ranker()
            if self.opt.get("min_probability") is not None:
                ranker.calibration = super()._calibration()
            self._search = IndexSearch(self.opt, ranker)

    def _calibration(self) -> Calibration | None:
        return self._search.calibration if self._search else super()._calibration()

    def reads_turns(self) -> bool:
        return super().reads_turns() or bool(self.opt.get("index"))  # what was said, and what a cross-encoder reads

    def rank(self, batch: Batch) -> Ranked | None:
        if self.eval_candidates != INDEX:
            return super().rank(batch)
        if self._search is None:
            raise ConfigError("--index was made by the model as it was before it learnt: leave it out in training")
        with self.autocast():
            contexts = self.ranker.encode_context(contexts_of(batch))
        hits, costs = self._search.find(contexts, batch.turns, exam=batch.labels is not None)
        for name, value in costs.items():
            self.global_metrics.add(name, AverageMetric(value, len(hits)))
        least = 0.0 if self._confidence is None else self._confidence.least
        found = [distinct(some, least=least) for some in hits]
        return found, None if batch.labels is None else self._search.metrics(batch.labels, hits, hits_at=self._hits_at)
