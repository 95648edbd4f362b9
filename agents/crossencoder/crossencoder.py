"""`-m crossencoder`: context and candidate in one sequence, Section 4.3 of the poly-encoder paper."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.args import PAIR_BATCH_SIZE, add_pair_args, set_training_defaults
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser


class CrossencoderAgent(RankerAgent):
    """Cross-encoder: the most accurate of the three; every candidate costs a pass through the transformer."""

    architecture = "cross"

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_pair_args(parser)
        # Section 5.1: batches of 16, each example with negatives of its own, and a longer warm-up
        parser.set_defaults(candidates="inline", warmup_updates=1000, encode_candidate_vecs=False)
        set_training_defaults(parser, partial_opt, batchsize=PAIR_BATCH_SIZE)
        return parser
