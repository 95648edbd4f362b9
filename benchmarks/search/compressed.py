"""Measures shortlists of compressed vectors, rescored by the whole ones: a bit, four and eight of each number.

For each context of one vector the ten best, one context at a time: a method proposes `length` rows, whose vectors are
read from their files and scored exactly. Recall is counted against the fp32 scan; times are the processor's.
- scan, scan_bf16, scan_int8: every row is scored, with `polyencoder.scoring.search`;
- signs: the sign of each number, compared by their Hamming distance, with numpy (2 or later: `np.bitwise_count`);
  signs-faiss: by `IndexBinaryFlat`;
- rabitq: the signs of a vector's differences from the mean, compared with the context's numbers (Gao and Long 2024),
  by FAISS's `IndexRaBitQ`; int8: by its `IndexScalarQuantizer`;
- kinds of `FaissSearch`, of which ivf-pq with pq_bits=4 has FAISS's fast scan, with the defaults of their efforts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import interleaved_ms
from benchmarks.search.indexed import TIMED, TOP_K, each_of, faiss_threads, recall_of
from benchmarks.search.vectors import size_mb, store
from polyencoder.index.faiss.file import build_faiss
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, search

Array = np.ndarray[Any, Any]
Propose = Callable[[Array, int], Array]
"""A context [1, dim] and a length -> rows [length]."""

LENGTHS = (100, 300, 1000)
TRAINING = 50_000  # rows
CHUNK = 1 << 15
CODES = {"rabitq": "RaBitQ", "int8": "SQ8"}  # as of `faiss.index_factory`


def measure(
    vectors: Vectors, contexts: ContextEncoding, folder: Path, *, kinds: Sequence[str], repeats: int
) -> list[dict[str, Any]]:
    """The rows of the report. `folder` is for the vectors in int8; FAISS's files go beside those in fp32."""
    if contexts.n_codes > 1:
        raise SystemExit("--cases compressed: contexts of one vector each, as of a bi-encoder (--codes 1)")
    about = {"case": "compressed", "rows": len(vectors), "contexts": contexts.batch_size}
    truth = search(contexts, vectors, k=TOP_K).indices
    small = store(folder, (chunk for _, chunk in _chunks(vectors)), dtype="int8")
    ways: dict[tuple[str, int | None], Callable[[ContextEncoding], Tensor]] = {
        ("scan", None): partial(_scanned, vectors),
        ("scan_bf16", None): partial(_scanned, vectors, compute_dtype=torch.bfloat16),
        ("scan_int8", None): partial(_scanned, small),
    }
    bytes_of = {"scan": size_mb(vectors), "scan_bf16": size_mb(vectors), "scan_int8": size_mb(small)}
    bytes_of = {name: size * 2**20 / len(vectors) for name, size in bytes_of.items()}
    build_s = dict.fromkeys(bytes_of, 0.0)
    for asked in kinds:
        kind, parameters = parse_faiss(asked)
        start = time.process_time()
        made = build_faiss(vectors, kind=kind, **parameters)
        build_s[asked] = time.process_time() - start
        bytes_of[asked] = (vectors.folder / made.file).stat().st_size / len(vectors)
        ways |= {(asked, length): partial(_listed, FaissSearch(made, vectors), length) for length in LENGTHS}
    with faiss_threads(torch.get_num_threads()):
        codes: dict[str, Callable[[Vectors], tuple[Propose, float]]] = {"signs": _signs, "signs-faiss": _signs_by_faiss}
        codes |= {name: partial(_codes, recipe=recipe) for name, recipe in CODES.items()}
        for name, make in codes.items():
            start = time.process_time()
            propose, bytes_of[name] = make(vectors)
            build_s[name] = time.process_time() - start
            for length in LENGTHS:
                ways[name, length] = partial(_rescored, vectors, propose, length)
        ones = [contexts.select(i) for i in range(min(TIMED, contexts.batch_size))]
        calls = {f"{name} {length}": partial(each_of, way, ones) for (name, length), way in ways.items()}
        times = interleaved_ms(calls, repeats=repeats, clock=time.process_time)
        return [
            about
            | {"kind": name, "list_length": length, "bytes": round(bytes_of[name]), "build_s": build_s[name]}
            | _agreement(way, contexts, truth)
            | {"ms": times[f"{name} {length}"] / len(ones), "vs_scan": times["scan None"] / times[f"{name} {length}"]}
            for (name, length), way in ways.items()
        ]


def _scanned(vectors: Vectors, context: ContextEncoding, **settings: Any) -> Tensor:
    return search(context, vectors, k=TOP_K, **settings).indices


def _listed(searcher: FaissSearch, length: int, context: ContextEncoding) -> Tensor:
    return searcher.search(context, top_k=TOP_K, list_length=length).rows


def _rescored(vectors: Vectors, propose: Propose, length: int, context: ContextEncoding) -> Tensor:
    """The ten best rows [1, 10] of a shortlist."""
    rows = torch.from_numpy(np.sort(propose(context.vectors[0].numpy(), length)))
    return rows[search(context, vectors.take(rows), k=TOP_K).indices]


def _signs(vectors: Vectors) -> tuple[Propose, float]:
    """Packed bits by 64, in columns, so that counts are added up without a reduction."""
    packed = np.ascontiguousarray(_packed(vectors).view(np.uint64).T)

    def propose(context: Array, length: int) -> Array:
        distance = np.zeros(packed.shape[1], dtype=np.uint16)
        for column, bits in zip(packed, np.packbits(context > 0, axis=1).view(np.uint64)[0], strict=True):
            distance += np.bitwise_count(column ^ bits)
        return np.argpartition(distance, length)[:length]

    return propose, vectors.dim / 8


def _signs_by_faiss(vectors: Vectors) -> tuple[Propose, float]:
    index = faiss_library().IndexBinaryFlat(vectors.dim)
    index.add(_packed(vectors))
    return lambda context, length: index.search(np.packbits(context > 0, axis=1), length)[1][0], vectors.dim / 8


def _codes(vectors: Vectors, *, recipe: str) -> tuple[Propose, float]:
    faiss = faiss_library()
    index = faiss.index_factory(vectors.dim, recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors.take(torch.randperm(len(vectors))[:TRAINING].sort().values).numpy())
    for _, chunk in _chunks(vectors):
        index.add(chunk.numpy())
    if hasattr(index, "qb"):
        index.qb = 8  # bits of the context's numbers; 0, the default, is a hundred times as slow
    bytes_of_row = len(faiss.serialize_index(index)) / len(vectors)
    return lambda context, length: index.search(context, length)[1][0], bytes_of_row


def _packed(vectors: Vectors) -> Array:
    """The sign bits, uint8 [rows, dim / 8]."""
    return np.concatenate([np.packbits(chunk.numpy() > 0, axis=1) for _, chunk in _chunks(vectors)])


def _chunks(vectors: Vectors) -> Iterator[tuple[int, Tensor]]:
    return ((first, chunk) for first, chunk, _ in vectors.chunks(CHUNK))


def _agreement(way: Callable[[ContextEncoding], Tensor], contexts: ContextEncoding, truth: Tensor) -> dict[str, float]:
    found = torch.cat([way(contexts.select(i)) for i in range(contexts.batch_size)])
    return {
        "recall10": recall_of(found, truth).mean().item(),
        "top1": (found[:, 0] == truth[:, 0]).float().mean().item(),
    }
