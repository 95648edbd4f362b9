"""`-m crossencoder`: context and candidate in one sequence, Section 4.3 of the poly-encoder paper."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent


class CrossencoderAgent(RankerAgent):
    """Cross-encoder: the most accurate of the three; every candidate costs a pass through the transformer."""

    architecture = "cross"
