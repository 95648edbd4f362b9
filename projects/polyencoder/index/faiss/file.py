"""A FAISS index of an index's vectors: built in bounded memory, written beside them.

Its file, `faiss-TAG-KIND.index`, is FAISS's own format; the ids in it are rows. It is never changed, and its
description, `FaissFile`, is a part of the index's. Rows that are added later are not in it: a search scans them until
it is rebuilt.
"""

from __future__ import annotations

import secrets

import numpy as np

from polyencoder.errors import InputError, PolyencoderError, first_line
from polyencoder.index.faiss.description import FaissFile
from polyencoder.index.faiss.kinds import choose, recipe
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.vectors import Vectors
from polyencoder.storage.files import atomic_write
from polyencoder.storage.signatures import sign_file

_CHUNK = 1 << 15  # rows added at once


def build_faiss(vectors: Vectors, *, kind: str = "auto", **overrides: int | str) -> FaissFile:
    """Builds a FAISS index of all `vectors`, by inner product, and writes it into their folder, under a new name.

    It is trained on a fixed random sample and filled in chunks: memory is that of the index itself.

    Args:
        kind: "hnsw" (a graph), "ivf-flat" (lists of whole vectors), "ivf-pq" (lists of compressed ones, the smallest
            by far), or "auto": hnsw, and ivf-pq from four million vectors on, without overrides.
        overrides: parameters instead of those for the number of rows.
            hnsw: `m` (neighbours of a node), `ef_construction`, `ef_search` (nodes examined).
            ivf-flat and ivf-pq: `nlist`, `nprobe` (lists that a search reads), `training_rows`.
            ivf-pq: `pq_m` (numbers of each vector; divides dim), `pq_bits` (4 is compared fastest).
            all but ivf-pq: `storage`, "float32", or "float16" in half the memory (the default if the vectors are not
            float32 themselves). Certified results need "float32".

    Raises:
        ConfigError: faiss is not installed, or an unknown kind or override, or one that does not fit.
        InputError: there are no vectors.
        PolyencoderError: FAISS could not build or write it.
    """
    faiss, folder, rows = faiss_library(), vectors.folder, len(vectors)
    if rows == 0:
        raise InputError(f"{folder}: there are no vectors to index")
    kind, parameters = choose(kind, overrides, rows=rows, dim=vectors.dim, dtype=vectors.dtype)
    try:
        index = faiss.index_factory(vectors.dim, recipe(kind, parameters), faiss.METRIC_INNER_PRODUCT)
        if kind == "hnsw":
            index.hnsw.efConstruction = parameters["ef_construction"]
        if hasattr(index, "do_polysemous_training"):
            index.do_polysemous_training = False  # minutes of annealing, for a search mode that is not used here
        if not index.is_trained:
            places = np.random.default_rng(0).permutation(rows)  # always the same
            index.train(vectors.take(np.sort(places[: int(parameters["training_rows"])])))
        max_norm = 0.0
        for first in range(0, rows, _CHUNK):
            chunk = vectors.take(np.arange(first, min(first + _CHUNK, rows)))
            max_norm = max(max_norm, float(np.linalg.norm(chunk, axis=1).max()))
            index.add(chunk)
        name = f"faiss-{secrets.token_hex(8)}-{kind}.index"
        with atomic_write(folder / name) as temporary:
            faiss.write_index(index, str(temporary))
            signature = sign_file(temporary)
    except PolyencoderError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise PolyencoderError(f"{folder}: FAISS could not build a {kind} index: {first_line(error)}") from error
    return FaissFile(file=name, kind=kind, rows=rows, max_norm=max_norm, parameters=parameters, signature=signature)
