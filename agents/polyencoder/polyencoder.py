"""`-m polyencoder`: a context of m vectors over which each candidate attends, Section 4.4 of the poly-encoder paper."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent


class PolyencoderAgent(RankerAgent):
    """Poly-encoder: nearly as fast as a bi-encoder, nearly as accurate as a cross-encoder."""

    architecture = "poly"
