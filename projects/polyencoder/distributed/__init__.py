"""Candidates encoded by several machines: a callable on Arrow tables, and the files of vectors that it makes."""

from __future__ import annotations

from polyencoder.distributed.encoding import EncodeCandidates
from polyencoder.distributed.parts import encode_parts
from polyencoder.distributed.ray import map_with_ray

__all__ = ["EncodeCandidates", "encode_parts", "map_with_ray"]
