"""`IndexOptions`: how an index is made, for Python and the command line."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from polyencoder.checks import hide_password
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import ConfigError
from polyencoder.index.documents import Split
from polyencoder.index.meta import Fingerprints
from polyencoder.index.token_rows import TokenDtype
from polyencoder.index.vectors import VectorDtype
from polyencoder.settings.metadata import Flag
from polyencoder.validation import raise_config_errors

SHARD_SIZE = 1 << 16
_MAX_COUNT = 1 << 31  # rows, or processes

_FOLDER_OPTIONS = ("dtype", "store_tokens", "faiss", "workers", "shard_size")


@raise_config_errors
@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class IndexOptions:
    """Options of a new index.

    Several `workers` import the main module, so a script that indexes with them needs `if __name__ == "__main__":`.
    """

    dtype: VectorDtype = "float32"
    """How vectors are stored: bfloat16 and float16 halve, int8 quarters the size of float32."""
    store_tokens: TokenDtype | None = None
    """Also store candidates' token vectors in the folder, for a late-interaction encoder: its searches then rerank
    without reading texts. With int8 a token takes as many bytes as its vector has numbers."""
    split: Annotated[int | None, Field(ge=1, le=_MAX_COUNT)] = None
    """Split texts into passages of at most this number of tokens, at the ends of sentences: each is a candidate, ID#1,
    ID#2, with the metadata `document`, and a search gives each document once, by its best passage."""
    overlap: Annotated[int, Field(ge=0, le=_MAX_COUNT)] = 0
    """With `split`: the tokens of sentences, at most, that a passage repeats of the one before it."""
    words: bool = False
    """Also index the words of the texts, in a folder or PostgreSQL, for searches by both:
    `polyencoder search --hybrid`."""
    faiss: Annotated[str | None, Flag(parse=False)] = None
    """Also build a FAISS index in the folder, for searches that do not score every candidate: "hnsw", "ivf-flat",
    "ivf-pq", or "auto" to choose by the number of candidates. With parameters, as in
    "hnsw,m=16,ef_search=256": see `polyencoder.index.faiss.file.build_faiss`."""
    recall: Annotated[float | None, Flag(parse=False)] = None
    """With `faiss`, the recall@10 that its searches shall reach, such as 0.99, measured against the scan; the cheapest
    settings that reach it become the index's defaults. See `FolderIndex.tune`."""
    milvus: str | None = None
    """How Milvus searches: auto, as it chooses, or flat, comparing with every vector, so that results are certified
    (default: auto)."""
    postgres: str | None = None
    """How PostgreSQL searches: flat, comparing with every vector, so that results are certified, or hnsw or ivf-flat,
    with parameters of pgvector, as in hnsw,m=16,ef_construction=128 (default: flat)."""
    workers: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 1
    """Encoding processes, each with its own copy of the model."""
    shard_size: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = SHARD_SIZE
    """Texts per file of vectors, encoded at once; a killed run loses at most one file."""

    def split_for(self, ranker: TextRanker | Fingerprints) -> Split | None:
        """How texts are split for a model. ConfigError if it cannot read such passages, or there is no model."""
        if self.split is None:
            return None
        if isinstance(ranker, Fingerprints):
            raise ConfigError("split is for texts that a model encodes, not for given vectors", argument="split")
        split = Split(tokens=self.split, overlap=self.overlap)
        split.check(ranker.text)
        return split

    def check_engine(self, engine: str | None, where: object) -> None:
        """Raises ConfigError for an option that does not apply to the engine at `where`: None for folders."""
        for server in ("milvus", "postgres"):
            if (kind := getattr(self, server)) is not None and engine != server:
                raise ConfigError(
                    f"{server} is {kind!r}, the kind of an index in {server}, but the index is elsewhere",
                    argument=server,
                )
        if self.overlap and self.split is None:
            raise ConfigError("overlap is read only with split: give that too, or leave it out", argument="overlap")
        if engine is None:
            return
        address = hide_password(str(where))
        if self.words and engine != "postgres":
            raise ConfigError(f"{address}: words are only for index folders and PostgreSQL", argument="words")
        for field in fields(self):
            if field.name in _FOLDER_OPTIONS and getattr(self, field.name) != field.default:
                raise ConfigError(f"{address}: {field.name} is only for index folders", argument=field.name)
