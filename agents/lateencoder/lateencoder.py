"""`-m lateencoder`: a bi-encoder's vectors for indexes, and a score that also compares tokens and turns (ColBERT)."""

from __future__ import annotations

from parlai.agents.ranker.agent import RankerAgent


class LateencoderAgent(RankerAgent):
    """Late-interaction encoder: more accurate than a bi-encoder; reranks what its index finds."""

    architecture = "late"
