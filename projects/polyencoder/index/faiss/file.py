"""A FAISS index over an index folder's vectors: built in bounded memory, written beside them.

    faiss-KIND.index     FAISS's own format; the ids in it are rows
    faiss.json           what it is, how many rows it covers and how it was built

`faiss` is the name of an index; one that is made later has another (`faiss-` and a random part), and files of its own.

Rows that are added to the folder later are not in it: a search scans those until it is built anew.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, InputError, PolyencoderError, first_line
from polyencoder.index.faiss.kinds import KINDS, Parameters, choose, recipe
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.vectors import Vectors
from polyencoder.storage.files import fingerprint, replacing, write_text

__all__ = [
    "FAISS",
    "FaissFile",
    "Tuned",
    "build_faiss",
    "copy_faiss",
    "faiss_files",
    "is_of",
    "read_faiss",
]

_FORMAT_VERSION = 1
FAISS = "faiss"
"""The name of a FAISS index, unless it is given one."""
_AGAIN = "build it again with build_faiss"
_SAMPLED = 64  # vectors by which those of another index are told apart
_CHUNK = 1 << 15  # rows that are added at a time


@dataclass(frozen=True)
class Tuned:
    """The settings that were measured to reach a recall, which are a search's unless it is told others.

    Args:
        recall: what was asked for.
        top_k: of so many best candidates.
        effort: `ef_search` or `nprobe`; None for a flat index.
        list_length: how many candidates each code, or group of codes, proposes.
        measured: the recall@top_k against the scan that they reached.
        error: the standard error of a recall that is measured with so many contexts (see `index.tuning`).
        contexts: over so many.
        source: where these were from.
        rows: how many vectors there were.
        vs_scan: times the scan's speed, when contexts were answered together.
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
        """Whether what was measured is the recall that was asked for, with its standard error to spare."""
        return self.measured - self.error >= self.recall or self.measured == 1

    def __str__(self) -> str:
        effort = "" if self.effort is None else f"effort {self.effort}, "
        by = f"{effort}lists of {self.list_length}, {self.vs_scan:g} times the scan's speed"
        over = f"{self.contexts} contexts{f' of {self.source}' if self.source else ''}"
        return f"recall@{self.top_k} {self.measured:.4f} (standard error {self.error:.4f}, {over}) by {by}"


@dataclass(frozen=True)
class FaissFile:
    """What faiss.json says of the FAISS index beside it.

    Args:
        kind: one of `faiss_kinds.KINDS`.
        rows: it covers the rows 0 to `rows` - 1.
        dim: of the vectors.
        max_norm: the length of the longest vector, for the rounding error of inner products.
        parameters: how it was built; `ef_search` (hnsw) and `nprobe` (ivf) are what a search uses unless told.
        sample: a digest of some of the vectors, by which an index of other vectors is recognised.
        tuned: what a search uses unless told, where that was measured (see `index.tuning`).
    """

    kind: str
    rows: int
    dim: int
    max_norm: float
    parameters: Parameters
    sample: str
    format_version: int = _FORMAT_VERSION
    tuned: Tuned | None = None

    @property
    def effort(self) -> int:
        """What a search of a kind other than flat uses unless told."""
        if self.tuned is not None and self.tuned.effort is not None:
            return self.tuned.effort
        return int(self.parameters["ef_search" if self.kind == "hnsw" else "nprobe"])

    def write(self, folder: str | os.PathLike[str], *, name: str = FAISS) -> None:
        """Write it beside the index of this name."""
        values = dataclasses.asdict(self)
        if self.tuned is None:
            del values["tuned"]
        write_text(_description(folder, name), json.dumps(values, indent=2) + "\n")

    @classmethod
    def read(cls, folder: str | os.PathLike[str], *, name: str = FAISS) -> FaissFile:
        """What faiss.json says; FAISS itself is not needed.

        Raises:
            CheckpointError: it is missing, damaged, or from a newer version.
        """
        path = _description(folder, name)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version = int(values.get("format_version", _FORMAT_VERSION))
            if version <= _FORMAT_VERSION:
                if values.get("tuned") is not None:
                    values["tuned"] = Tuned(**values["tuned"])
                return cls(**values)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path} does not exist: there is no FAISS index; build one with build_faiss"
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read ({first_line(error)}): {_AGAIN}") from None
        raise CheckpointError(
            f"{path} has format version {version}, this program reads up to {_FORMAT_VERSION}: "
            "install a newer parlai-polyencoder"
        )

    @property
    def has_exact_lists(self) -> bool:
        """Whether a search of all its lists gives truly the nearest rows of each query."""
        return self.kind in ("flat", "ivf-flat") and self.parameters["storage"] == "float32"


def build_faiss(
    folder: str | os.PathLike[str], vectors: Vectors, *, kind: str = "auto", name: str = FAISS, **overrides: int | str
) -> FaissFile:
    """Build a FAISS index of all `vectors`, by inner product, and write it into `folder`; one of this name is replaced.

    It is trained on a random sample, the same each time, and filled in chunks: memory is that of the index itself.

    Args:
        folder: where it goes, the folder of the vectors.
        vectors: what it covers.
        kind: "flat" (all are compared), "hnsw" (a graph), "ivf-flat" (lists of whole vectors), "ivf-pq" (lists of
            compressed ones, the smallest by far), or "auto": by number, flat, then hnsw, then ivf-pq, and no overrides.
        name: what the names of its files begin with.
        overrides: of what the number of rows suggests.
            hnsw: `m` (neighbours of a node), `ef_construction`, `ef_search` (how many it looks at).
            ivf-flat and ivf-pq: `nlist`, `nprobe` (lists that a search reads), `training_rows`.
            ivf-pq: `pq_m` (numbers of each vector; divides dim), `pq_bits`.
            all but ivf-pq: `storage`, "float32", or "float16" in half the memory (the default if the vectors are not
            float32 themselves). Certified results need "float32".

    Raises:
        ConfigError: faiss is not installed, or an unknown kind or override, or one that does not fit.
        InputError: there are no vectors.
        PolyencoderError: FAISS could not build or write it.
    """
    faiss = faiss_library()
    rows = len(vectors)
    if rows == 0:
        raise InputError(f"{folder}: there are no vectors to index")
    kind, parameters = choose(kind, overrides, rows=rows, dim=vectors.dim, dtype=vectors.dtype)
    try:
        index = faiss.index_factory(vectors.dim, recipe(kind, parameters), faiss.METRIC_INNER_PRODUCT)
        if kind == "hnsw":
            index.hnsw.efConstruction = parameters["ef_construction"]
        if kind == "ivf-pq":
            index.do_polysemous_training = False  # minutes of annealing, for a way of searching that is not used here
        if not index.is_trained:
            index.train(vectors.take(_sample(rows, int(parameters["training_rows"]))).numpy())
        max_norm = 0.0
        for first in range(0, rows, _CHUNK):
            chunk = vectors.take(torch.arange(first, min(first + _CHUNK, rows)))
            max_norm = max(max_norm, chunk.norm(dim=1).max().item())
            index.add(chunk.numpy())
        meta = FaissFile(kind, rows, vectors.dim, max_norm, parameters, _digest(vectors, rows))
        file = Path(folder) / _file(name, meta.kind)
        with replacing(file) as temporary:
            faiss.write_index(index, str(temporary))
    except PolyencoderError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise PolyencoderError(f"{folder}: FAISS could not build a {kind} index: {first_line(error)}") from error
    meta.write(folder, name=name)
    for other in Path(folder).glob(f"{name}-*.index"):
        if other != file:
            other.unlink()
    return meta


def read_faiss(folder: str | os.PathLike[str], vectors: Vectors, *, name: str = FAISS) -> tuple[FaissFile, Any]:
    """What faiss.json says, and the memory-mapped FAISS index.

    Raises:
        ConfigError: faiss is not installed.
        CheckpointError: a file is missing, damaged, from a newer version, or made of other vectors.
    """
    faiss = faiss_library()
    meta = FaissFile.read(folder, name=name)
    file = Path(folder) / _file(name, meta.kind)
    try:
        index = faiss.read_index(str(file), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    except RuntimeError as error:
        raise CheckpointError(f"{file} cannot be read ({first_line(error)}): {_AGAIN}") from None
    if (index.ntotal, index.d) != (meta.rows, meta.dim) or not is_of(meta, vectors):
        raise CheckpointError(f"{file} was made of other vectors than those in its folder: {_AGAIN}")
    return meta, index


def is_of(meta: FaissFile, vectors: Vectors) -> bool:
    """Whether an index was made of the first rows of these vectors, as far as its sample of them tells."""
    fits = meta.dim == vectors.dim and meta.rows <= len(vectors)
    return fits and meta.sample == _digest(vectors, meta.rows)


def copy_faiss(folder: str | os.PathLike[str], meta: FaissFile, *, name: str, to: str) -> None:
    """Give an index, whose file is never written to, another name as well, under which `meta` describes it."""
    old, new = (Path(folder) / _file(one, meta.kind) for one in (name, to))
    try:
        os.link(old, new)
    except OSError:  # a file system without links
        with replacing(new) as temporary:
            shutil.copyfile(old, temporary)
    meta.write(folder, name=to)


def faiss_files(name: str) -> list[str]:
    """What the files of a FAISS index of this name are called, whatever its kind."""
    return [f"{name}.json", *(_file(name, kind) for kind in KINDS)]


def _description(folder: str | os.PathLike[str], name: str) -> Path:
    return Path(folder) / f"{name}.json"


def _file(name: str, kind: str) -> str:
    return f"{name}-{kind}.index"


def _sample(rows: int, count: int) -> Tensor:
    """Rows to train on, ascending: `count` of them, the same each time."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:count].sort().values


def _digest(vectors: Vectors, rows: int) -> str:
    spread = torch.linspace(0, rows - 1, min(rows, _SAMPLED), dtype=torch.float64).long()
    return fingerprint([vectors.take(spread).numpy().tobytes()])
