"""A FAISS index of an index's vectors: built in bounded memory, written beside them, opened memory-mapped.

Its file, `faiss-TAG-KIND.index`, is FAISS's own format; the ids in it are rows. It is never changed, and its
description, `FaissFile`, is a part of the index's. Rows that are added later are not in it: a search scans them until
it is rebuilt.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import torch

from polyencoder.checks import check_fields
from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError, first_line
from polyencoder.index.faiss.kinds import KINDS, Parameters, check_parameters, choose, recipe
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.vectors import Vectors
from polyencoder.storage.digests import ends_fingerprint
from polyencoder.storage.files import atomic_write

_CHUNK = 1 << 15  # rows added at once


@dataclass(frozen=True)
class Tuned:
    """The measured settings that reach a recall: a search's defaults.

    Args:
        recall: the requested recall.
        effort: `ef_search` or `nprobe`; None for a flat index.
        list_length: candidates proposed by each code, or group of codes.
        measured: the recall@top_k that they reached, compared with the scan.
        error: the standard error of a recall measured on `contexts` contexts (see `index.faiss.tuning`).
        contexts: their number.
        source: where the contexts came from.
        rows: the number of vectors at that time.
        vs_scan: speed relative to the scan, for batches of contexts.
    """

    recall: float
    top_k: int
    effort: int | None
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
        effort = "" if self.effort is None else f"effort {self.effort}, "
        by = f"{effort}lists of {self.list_length}, {self.vs_scan:g} times the scan's speed"
        over = f"{self.contexts} contexts{f' of {self.source}' if self.source else ''}"
        return f"recall@{self.top_k} {self.measured:.4f} (standard error {self.error:.4f}, {over}) by {by}"


@dataclass(frozen=True)
class FaissFile:
    """A FAISS index: its file and build settings.

    Args:
        kind: one of `kinds.KINDS`.
        rows: the index covers the rows 0 to `rows` - 1.
        max_norm: the length of the longest vector, for the rounding error of inner products.
        parameters: of the build; `ef_search` (hnsw) and `nprobe` (ivf) are a search's defaults.
        tuned: the measured defaults of a search (see `tuning`); None if not tuned.
        ends: a digest of the file's beginning and end, compared when it is opened; empty in earlier indexes.
    """

    file: str
    kind: str
    rows: int
    max_norm: float
    parameters: Parameters
    tuned: Tuned | None = None
    ends: str = ""

    @classmethod
    def parsed(cls, values: dict[str, Any]) -> FaissFile:
        """Parses JSON. Raises TypeError or ConfigError for invalid values."""
        tuned = values.get("tuned")
        parsed = cls(**{**values, "tuned": None if tuned is None else Tuned(**tuned)})
        for fields in filter(None, (parsed, parsed.tuned)):
            check_fields(fields)
        check_parameters(parsed.kind, parsed.parameters)
        if missing := {*KINDS[parsed.kind]} - {*parsed.parameters}:
            raise ConfigError(f"a {parsed.kind} index without {missing.pop()}")
        return parsed

    @property
    def effort(self) -> int:
        """The default effort of searches; not for flat."""
        if self.tuned is not None and self.tuned.effort is not None:
            return self.tuned.effort
        return int(self.parameters["ef_search" if self.kind == "hnsw" else "nprobe"])

    @property
    def has_exact_lists(self) -> bool:
        """Whether a search of all its lists returns exactly the nearest rows."""
        return self.kind in ("flat", "ivf-flat") and self.parameters["storage"] == "float32"


def build_faiss(vectors: Vectors, *, kind: str = "auto", **overrides: int | str) -> FaissFile:
    """Builds a FAISS index of all `vectors`, by inner product, and writes it into their folder, under a new name.

    It is trained on a fixed random sample and filled in chunks: memory is that of the index itself.

    Args:
        kind: "flat" (all are compared), "hnsw" (a graph), "ivf-flat" (lists of whole vectors), "ivf-pq" (lists of
            compressed ones, the smallest by far), or "auto": by number, flat, then hnsw, then ivf-pq, and no overrides.
        overrides: parameters instead of those for the number of rows.
            hnsw: `m` (neighbours of a node), `ef_construction`, `ef_search` (nodes examined).
            ivf-flat and ivf-pq: `nlist`, `nprobe` (lists that a search reads), `training_rows`.
            ivf-pq: `pq_m` (numbers of each vector; divides dim), `pq_bits`.
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
        if kind == "ivf-pq":
            index.do_polysemous_training = False  # minutes of annealing, for a search mode that is not used here
        if not index.is_trained:
            places = torch.randperm(rows, generator=torch.Generator().manual_seed(0))  # always the same
            index.train(vectors.take(places[: int(parameters["training_rows"])].sort().values).numpy())
        max_norm = 0.0
        for first in range(0, rows, _CHUNK):
            chunk = vectors.take(torch.arange(first, min(first + _CHUNK, rows)))
            max_norm = max(max_norm, chunk.norm(dim=1).max().item())
            index.add(chunk.numpy())
        name = f"faiss-{secrets.token_hex(8)}-{kind}.index"
        with atomic_write(folder / name) as temporary:
            faiss.write_index(index, str(temporary))
            ends = ends_fingerprint(temporary)
    except PolyencoderError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise PolyencoderError(f"{folder}: FAISS could not build a {kind} index: {first_line(error)}") from error
    return FaissFile(name, kind, rows, max_norm, parameters, ends=ends)


def read_faiss(meta: FaissFile, vectors: Vectors) -> Any:
    """The memory-mapped FAISS index of vectors.

    Raises:
        ConfigError: faiss is not installed.
        CheckpointError: the file is missing, damaged, or made from other vectors.
    """
    faiss, file = faiss_library(), vectors.folder / meta.file
    try:
        is_other = bool(meta.ends) and ends_fingerprint(file) != meta.ends
        index = faiss.read_index(str(file), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    except (RuntimeError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read ({first_line(error)}): build it again with build_faiss") from None
    if is_other or (index.ntotal, index.d) != (meta.rows, vectors.dim) or meta.rows > len(vectors):
        raise CheckpointError(f"{file} was made from other vectors than those in its folder: build it again")
    return index
