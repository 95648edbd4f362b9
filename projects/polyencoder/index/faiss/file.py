"""A FAISS index of an index's vectors: its description, `FaissFile`, and its making, in bounded memory.

Its file, `faiss-TAG-KIND.index`, is FAISS's own format; the ids in it are rows. It is never changed. Rows that are
added later are not in it: a search scans them until it is rebuilt.
"""

from __future__ import annotations

import secrets

import numpy as np

from polyencoder.errors import ConfigError, InputError, PolyencoderError, get_first_line
from polyencoder.index.faiss.kinds import KINDS, Parameters, check_parameters, choose, write_recipe
from polyencoder.index.faiss.library import import_faiss
from polyencoder.index.vectors import Vectors
from polyencoder.storage.files import atomic_write
from polyencoder.storage.signatures import make_key, sign_file
from polyencoder.validation import validated


@validated
class TunedSettings:
    """The measured settings that reach a recall: a search's defaults.

    Args:
        effort: `ef_search` or `nprobe`.
        list_length: candidates proposed by each code, or group of codes.
        measured: the recall@top_k that they reached, compared with the scan.
        error: the standard error of a recall measured on `contexts` contexts (see `index.faiss.tuning`).
        vs_scan: speed relative to the scan, for batches of contexts.
    """

    recall: float
    top_k: int
    effort: int
    list_length: int
    measured: float
    error: float
    contexts: int
    source: str
    rows: int
    vs_scan: float

    @property
    def reached(self) -> bool:
        """Whether the measured recall exceeds the requested one by its standard error."""
        return self.measured - self.error >= self.recall or self.measured == 1

    def __str__(self) -> str:
        by = f"effort {self.effort}, lists of {self.list_length}, {self.vs_scan:g} times the scan's speed"
        over = f"{self.contexts} contexts{f' of {self.source}' if self.source else ''}"
        return f"recall@{self.top_k} {self.measured:.4f} (standard error {self.error:.4f}, {over}) by {by}"


@validated
class FaissFile:
    """A FAISS index: its file and build settings.

    Args:
        kind: one of `kinds.KINDS`.
        rows: the index covers the rows 0 to `rows` - 1.
        max_norm: the length of the longest vector, for the rounding error of inner products.
        parameters: of the build; `ef_search` (hnsw) and `nprobe` (ivf) are a search's defaults.
        signature: of the file, checked before FAISS reads it (`polyencoder.storage.signatures`).
        tuned: the measured defaults of a search (see `tuning`); None if not tuned.
    """

    file: str
    kind: str
    rows: int
    max_norm: float
    parameters: Parameters
    signature: str
    tuned: TunedSettings | None = None

    def __str__(self) -> str:
        parameters = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"FAISS {self.kind} ({parameters}), of {self.rows:,} vectors"

    def __post_init__(self) -> None:
        check_parameters(self.kind, self.parameters)
        if missing := {*KINDS[self.kind]} - {*self.parameters}:
            raise ConfigError(f"a {self.kind} index without {missing.pop()}")

    @property
    def effort(self) -> int:
        """The default effort of searches."""
        if self.tuned is not None:
            return self.tuned.effort
        return int(self.parameters["ef_search" if self.kind == "hnsw" else "nprobe"])

    @property
    def has_exact_lists(self) -> bool:
        """Whether a search of all its lists returns exactly the nearest rows."""
        return self.kind == "ivf-flat" and self.parameters["storage"] == "float32"


_CHUNK = 1 << 15  # rows added at once


def build_faiss(vectors: Vectors, *, kind: str = "auto", **overrides: int | str) -> FaissFile:
    """Builds a FAISS index of all `vectors`, by inner product, and writes it into their folder, under a new name.

    It is trained on a fixed random sample and filled in chunks: only the index itself is in memory.

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
        ConfigError: faiss is not installed, a kind or override is unknown or does not fit, or there is no key to sign
            the file with.
        InputError: there are no vectors.
        PolyencoderError: FAISS could not build or write it.
    """
    faiss, folder, rows = import_faiss(), vectors.folder, len(vectors)
    if rows == 0:
        raise InputError(f"{folder}: there are no vectors to index")
    kind, parameters = choose(kind, overrides, rows=rows, dim=vectors.dim, dtype=vectors.dtype)
    make_key()  # before the work
    try:
        index = faiss.index_factory(vectors.dim, write_recipe(kind, parameters), faiss.METRIC_INNER_PRODUCT)
        if kind == "hnsw":
            index.hnsw.efConstruction = parameters["ef_construction"]
        if hasattr(index, "do_polysemous_training"):
            index.do_polysemous_training = False  # minutes of annealing, for a search mode that is not used here
        if not index.is_trained:
            order = np.random.default_rng(0).permutation(rows)  # always the same
            index.train(vectors.take(np.sort(order[: int(parameters["training_rows"])])))
        max_norm = 0.0
        for block in vectors.iter_blocks(_CHUNK):
            chunk = block.read_vectors().astype(np.float32, copy=False)
            max_norm = max(max_norm, float(np.linalg.norm(chunk.astype(np.float64), axis=1).max()))
            index.add(chunk)
        name = f"faiss-{secrets.token_hex(8)}-{kind}.index"
        with atomic_write(folder / name) as temporary:
            faiss.write_index(index, str(temporary))
            signature = sign_file(temporary)
    except PolyencoderError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise PolyencoderError(f"{folder}: FAISS could not build a {kind} index: {get_first_line(error)}") from error
    return FaissFile(file=name, kind=kind, rows=rows, max_norm=max_norm, parameters=parameters, signature=signature)
