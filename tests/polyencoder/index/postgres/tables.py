"""Indexes in a real PostgreSQL, and the scan in memory that they are compared with."""

from __future__ import annotations

from itertools import count

import numpy as np
import torch

from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints
from polyencoder.index.postgres.connection import Server
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.table import PostgresMeta, Table, parse_kind
from polyencoder.index.rows import hash_id
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Contexts
from polyencoder.search.scores import score

names = (f"test_{i}" for i in count())


def stored(where: str, vectors: np.ndarray, metadata: list[dict] | None = None, *, kind: str = "flat") -> PostgresIndex:
    """An index of these vectors, whose ids are "0", "1", ...; without a model."""
    name, parameters = parse_kind(kind)
    fingerprints, dim = Fingerprints("model", "tokenizer"), vectors.shape[1]
    meta = PostgresMeta.from_ranker(fingerprints, model_name="", dim=dim, kind=name, parameters=parameters)
    server = Server(where)
    with server.changing() as session:
        table = Table(session, server)
        table.create(meta)
        entries = [
            PostgresIndex._make_entry(Candidate(str(i), f"text {i}", metadata[i] if metadata else None))
            for i in range(len(vectors))
        ]
        table.write(zip(entries, vectors, strict=True))
        table.build()
    return PostgresIndex(server, meta, None)


def scanned(contexts: ContextEncoding, vectors: np.ndarray, *, k: int) -> list[list[str]]:
    """The ids of the k best, scored in float64; of equal scores the lowest key comes first."""
    keys = np.array([hash_id(str(i)) for i in range(len(vectors))])
    scores = score(Contexts.from_encoding(contexts), vectors.astype(np.float64))
    return [[str(row) for row in np.lexsort((keys, -context_scores))[:k]] for context_scores in scores]


def drawn(rows: int, codes: int, dim: int, *, seed: int = 0, contexts: int = 3) -> tuple[np.ndarray, ContextEncoding]:
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((rows, dim)).astype(np.float32)
    return vectors, ContextEncoding(torch.from_numpy(generator.standard_normal((contexts, codes, dim)).astype("f4")))


def ids(hits) -> list[list[str]]:
    return [[hit.id for hit in context_hits] for context_hits in hits]
