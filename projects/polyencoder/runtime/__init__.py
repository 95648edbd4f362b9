"""Ranks and searches without torch and transformers, with the graphs that `polyencoder export` writes.

from polyencoder.runtime import Ranker
ranker = Ranker.from_pretrained("folder", precision="int8")
ranker.rank(["hi !"], candidates, top_k=5)
ranker.search(["hi !"], ranker.open_index("index-folder"))
"""

from __future__ import annotations

from polyencoder.index.folder import FolderIndex
from polyencoder.index.hits import Hit
from polyencoder.ranked import Ranked
from polyencoder.runtime.ranker import Ranker
from polyencoder.search.contexts import Contexts

__all__ = ["Contexts", "FolderIndex", "Hit", "Ranked", "Ranker"]
