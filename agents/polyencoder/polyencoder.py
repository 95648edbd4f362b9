"""`-m polyencoder`: a context of m vectors over which each candidate attends, Section 4.4 of the poly-encoder paper."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.encoder_args import add_poly_args
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser


class PolyencoderAgent(RankerAgent):
    """Poly-encoder: nearly as fast as a bi-encoder, nearly as accurate as a cross-encoder."""

    architecture = "poly"

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_poly_args(parser)
        return parser
