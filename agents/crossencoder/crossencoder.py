"""`-m crossencoder`: context and candidate in one sequence, Section 4.3 of the poly-encoder paper."""

from __future__ import annotations

from typing import Any

from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.args import PAIR_BATCH_SIZE, add_pair_args, set_batch_size
from parlai.agents.ranker.learning.joint import Step
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.text import TokenBatch


class CrossencoderAgent(RankerAgent):
    """Cross-encoder: the most accurate of the three; every candidate costs a pass through the transformer."""

    architecture = "cross"

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_pair_args(parser)
        # Section 5.1: batches of 16, each example with negatives of its own, and a longer warm-up
        parser.set_defaults(candidates="inline", warmup_updates=1000, encode_candidate_vecs=False)
        set_batch_size(parser, partial_opt, PAIR_BATCH_SIZE)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if opt.get("pair_tokens", 0) < 0:
            raise ConfigError(f"--pair-tokens {opt['pair_tokens']}: give a number of tokens, or 0 for no limit")
        super().__init__(opt, shared)

    def learning_scores(self, contexts: TokenBatch, step: Step) -> Tensor:
        limit = self.opt.get("pair_tokens", 0) or None
        return self._scores(contexts, step.pool, max_tokens=limit)

    def eval_scores(self, contexts: TokenBatch, pool: CandidatePool) -> Tensor:
        return self._scores(contexts, pool)

    def _scores(self, contexts: TokenBatch, pool: CandidatePool, *, max_tokens: int | None = None) -> Tensor:
        candidates = self.dict.text.candidates(pool.texts).to(contexts.ids.device)
        scores: Tensor = self.ranker.score(contexts, candidates, pool.index, max_tokens=max_tokens)
        return scores
