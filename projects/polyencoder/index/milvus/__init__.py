"""Milvus as an engine of indexes: in one file (Milvus Lite) or beyond one machine, with the same code."""

from __future__ import annotations

from polyencoder.index.milvus.collection import MILVUS
from polyencoder.index.milvus.index import MilvusIndex

__all__ = ["MILVUS", "MilvusIndex"]
