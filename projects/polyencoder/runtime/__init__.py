"""Ranks and searches without torch and transformers, with the graphs that `polyencoder export` writes.

from polyencoder.runtime import Ranker
ranker = Ranker.from_pretrained("folder", precision="int8")
ranker.rank(["hi !"], candidates, top_k=5)
"""

from __future__ import annotations

from polyencoder.ranker.ranked import Ranked
from polyencoder.runtime.ranker import Ranker
from polyencoder.runtime.scoring import Contexts

__all__ = ["Contexts", "Ranked", "Ranker"]
