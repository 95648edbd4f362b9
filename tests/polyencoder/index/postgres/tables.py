"""Indexes in a real PostgreSQL, and the scan in memory that they are compared with."""

from __future__ import annotations

from itertools import count

import numpy as np
import torch

from polyencoder.config import Attention
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints
from polyencoder.index.postgres.connection import Server
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.table import PostgresMeta, Table, parse_kind
from polyencoder.index.rows import key_of
from polyencoder.scoring import ContextEncoding

names = (f"test_{i}" for i in count())


def stored(
    where: str,
    vectors: np.ndarray,
    metadata: list[dict] | None = None,
    *,
    kind: str = "flat",
    attention: Attention = "basic",
) -> PostgresIndex:
    """An index of these vectors, whose ids are "0", "1", ...; without a model."""
    name, parameters = parse_kind(kind)
    if "nlist" in parameters:
        parameters["nlist"] = parameters["nlist"] or 4
    meta = PostgresMeta(
        architecture="poly",
        dim=vectors.shape[1],
        fingerprints=Fingerprints("model", "tokenizer"),
        model_name="",
        kind=name,
        parameters=parameters,
        attention=attention,
    )
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


def scanned(contexts: ContextEncoding, vectors: np.ndarray, *, k: int, attention: str = "basic") -> list[list[str]]:
    """The ids of the k best by the paper's formula in float64; of equal scores the lowest key comes first."""
    found = []
    keys = np.array([key_of(str(i)) for i in range(len(vectors))])
    for i in range(contexts.batch_size):
        codes = contexts.vectors[i] if contexts.mask is None else contexts.vectors[i][contexts.mask[i]]
        logits = vectors.astype(np.float64) @ codes.numpy().astype(np.float64).T
        scaled = logits / (np.sqrt(vectors.shape[1]) if attention == "sqrt" else 1)
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        scores = (weights * logits).sum(1) / weights.sum(1)
        found.append([str(row) for row in np.lexsort((keys, -scores))[:k]])
    return found


def drawn(rows: int, codes: int, dim: int, *, seed: int = 0, contexts: int = 3) -> tuple[np.ndarray, ContextEncoding]:
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((rows, dim)).astype(np.float32)
    return vectors, ContextEncoding(torch.from_numpy(generator.standard_normal((contexts, codes, dim)).astype("f4")))


def ids(hits) -> list[list[str]]:
    return [[hit.id for hit in some] for some in hits]
