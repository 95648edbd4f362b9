"""`--hard-negatives N`: beside the labels of the batch, the wrong answers that the model so far likes best.

The agent knows no task, so what it mines from is what it has learnt from: the labels that have been in its batches.
Every so many updates these go into an index, which is searched with the context of each example from then on.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.args import add_hard_negative_args
from parlai.agents.ranker.learning.step import contexts_of
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch

from polyencoder.data.pool import CandidatePool, shared_pool
from polyencoder.errors import ConfigError
from polyencoder.ranker import Ranker
from polyencoder.training.hard_negatives import HardNegatives, Miner, parse_ranks


class HardNegativesAgent(RankerAgent):
    """An agent whose batches may get hard negatives from an index that it makes of the labels seen so far."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_hard_negative_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._hard_negatives = hard_negative_settings(opt)
        super().__init__(opt, shared)
        self._seen: dict[str, None] = {}
        self._miner: Miner | None = None
        self._indexed_at = self._steps()

    def _steps(self) -> int:
        """The updates, and the batches that had nothing to learn before there was an index (`--batchsize 1`)."""
        return int(self._number_training_updates) + self.skipped_batches

    def learning_pool(self, batch: Batch) -> CandidatePool:
        """The labels of the batch and what was mined for each: all for everyone, as every text is in it once."""
        pool = super().learning_pool(batch)
        if self._hard_negatives is None:
            return pool
        self._seen.update(dict.fromkeys(batch.labels))
        if self._steps() - self._indexed_at >= self.opt["hard_negatives_every"]:
            self._index_what_was_seen(self._hard_negatives)
        if self._miner is None:
            return pool
        self.model.eval()
        with torch.no_grad(), self.autocast():
            mined = self._miner(self.ranker.encode_context(contexts_of(batch)), batch.labels)
        self.model.train()
        return shared_pool([*batch.labels, *chain.from_iterable(mined)], batch.labels).to(batch.text_vec.device)

    def _index_what_was_seen(self, settings: HardNegatives) -> None:
        start = time.perf_counter()
        ranker = Ranker(self.ranker, self.dict.text, device=next(self.ranker.parameters()).device)
        with self.autocast():
            self._miner = Miner(ranker, ranker.index(list(self._seen)), settings)
        self.model.train()
        self._indexed_at = self._steps()
        seconds = time.perf_counter() - start
        logging.info(f"hard negatives: indexed the {len(self._seen)} labels seen so far, in {seconds:.1f} s")


def hard_negative_settings(opt: Opt) -> HardNegatives | None:
    """What the options ask for, if anything. Raises ConfigError for what cannot be."""
    count = opt.get("hard_negatives") or 0
    if count == 0:
        return None
    if count < 0:
        raise ConfigError(f"--hard-negatives {count}: must be 0, for none, or more")
    if opt["candidates"] != "batch":
        raise ConfigError(
            f"--hard-negatives {count} are added to --candidates batch, not {opt['candidates']}: for inline candidates "
            "`polyencoder mine` writes a file with hard negatives"
        )
    if opt["hard_negatives_every"] < 1:
        raise ConfigError(f"--hard-negatives-every {opt['hard_negatives_every']}: must be at least 1")
    first, last = parse_ranks(opt["hard_negative_ranks"])
    return HardNegatives(count, first, last, opt["hard_negative_margin"])
