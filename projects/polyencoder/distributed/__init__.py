"""Encoding of candidates: a callable on Arrow tables, and the files of vectors that it makes."""

from __future__ import annotations

from polyencoder.distributed.blocks import encode_blocks
from polyencoder.distributed.encoding import EncodeCandidates
from polyencoder.distributed.parts import encode_parts

__all__ = ["EncodeCandidates", "encode_blocks", "encode_parts"]
