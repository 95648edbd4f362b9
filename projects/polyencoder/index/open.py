"""`open_index`: an index by its address, whichever engine keeps it."""

from __future__ import annotations

import os

from polyencoder.checks import check_place
from polyencoder.index.base import Index
from polyencoder.index.folder import FolderIndex
from polyencoder.index.meta import Fingerprints
from polyencoder.index.milvus import MILVUS, MilvusIndex
from polyencoder.ranker.protocol import TextRanker

__all__ = ["open_index"]


def open_index(where: str | os.PathLike[str], ranker: TextRanker | Fingerprints, *, attention: str = "basic") -> Index:
    """The index at `where`, a folder or `milvus:` and the address of a server or file, for the model that made it.

    Args:
        where: see `FolderIndex.open` and `MilvusIndex.create`.
        ranker: the model; or its fingerprints and its `attention` from who does not add texts.

    Raises:
        CheckpointError: if there is no index, it is damaged, or another model made it.
        PolyencoderError: if a server is away.
    """
    check_place("the index", where, addresses=("milvus",))
    if str(where).startswith(MILVUS):
        return MilvusIndex.open(str(where), ranker, attention=attention)
    return FolderIndex.open(where, ranker, attention=attention)
