"""`-m biencoder`: score = red(T1(context)) . red(T2(candidate)), Section 4.2 of the poly-encoder paper."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent


class BiencoderAgent(RankerAgent):
    """Bi-encoder: the fastest of the three, and the simplest to index."""

    architecture = "bi"
