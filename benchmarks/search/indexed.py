"""Measures search among many stored vectors: the scan, FAISS with exact scores, and MaxSim-like rankings.

For each context the ten best, one context at a time; recall is counted against the scan:
- torch: all rows scored in fp32 by torch; scan: the library's search; scan_int8: the same of int8 vectors;
- hnsw, ivf-flat, ivf-pq: `FaissSearch` at several efforts, from the least to the one that finds nearly all;
- certified: the share of contexts whose ten best are proven to be the best, by lists of each code's 4,096 nearest;
- maxsim-max, maxsim-sum: a ranking by the largest or the sum of the codes' inner products, as engines for many
  vectors do. Its recall says how far that is from the poly-encoder's score.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import measure_interleaved_ms
from benchmarks.search import by_torch
from benchmarks.search.vectors import compute_size_mb, store
from polyencoder.index.faiss.file import build_faiss
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.faiss.library import import_faiss
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import search

TOP_K = 10
MIN_RECALL = 0.99
LONGEST_LIST = 4096
TIMED = 10  # contexts that an index is timed with
CHUNK = 1 << 14
# (list_length, effort) that are tried: effort is ef_search for hnsw, nprobe for ivf.
TRIED = {
    "hnsw": [(128, 128), (128, 256), (128, 512), (256, 1024), (256, 2048)],
    "ivf-flat": [(128, 16), (128, 64), (128, 128), (128, 256), (256, 512)],
    "ivf-pq": [(256, 32), (512, 64), (1024, 128), (4096, 256)],
}


def measure(
    vectors: Vectors, contexts: ContextEncoding, folder: Path, *, kinds: Sequence[str], scanned: int, repeats: int
) -> list[dict[str, Any]]:
    """The rows of the report. `folder` is for the vectors in int8; FAISS's files go beside those in fp32.

    Indexes answer all contexts, and a few are timed. Methods that read every vector answer the first `scanned`
    contexts, and are timed on two of them.
    """
    starts = range(0, len(vectors), CHUNK)
    shards = (vectors.take(np.arange(first, min(first + CHUNK, len(vectors)))) for first in starts)
    small, arrays = store(folder, shards, dtype="int8"), Contexts.from_encoding(contexts)
    truth = search(arrays, vectors, k=TOP_K).rows
    first_contexts = arrays.select(slice(scanned))
    about = {"case": "indexed", "rows": len(vectors), "codes": contexts.n_codes}
    rows = [about | row for row in _measure_exact(first_contexts, truth[:scanned], vectors, small, repeats=repeats)]
    faiss = import_faiss()
    cores = faiss.omp_get_max_threads()
    for kind_and_parameters in kinds:
        kind, parameters = parse_faiss(kind_and_parameters)
        start = time.perf_counter()
        meta = build_faiss(vectors, kind=kind, **parameters)  # all cores
        built = {"build_s": time.perf_counter() - start}
        built["size_mb"] = (vectors.folder / meta.file).stat().st_size / 2**20
        searcher = FaissSearch(meta, vectors)
        faiss.omp_set_num_threads(torch.get_num_threads())
        rows += [about | row | built for row in _measure_faiss(searcher, arrays, truth, repeats=repeats)]
        faiss.omp_set_num_threads(cores)
    return [*rows, about | _measure_certified(first_contexts, vectors)]


def select_fastest(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the fastest index with sufficient recall, else of the one with the highest; None without rows."""
    indexed = [row for row in rows if row.get("kind") in TRIED]
    enough = [row for row in indexed if row["recall10"] >= MIN_RECALL]
    if enough:
        return max(enough, key=lambda row: row["vs_scan"])
    return max(indexed, key=lambda row: row["recall10"], default=None)


def _measure_exact(
    contexts: Contexts, truth: Array, vectors: Vectors, small: Vectors, *, repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of the methods that read every vector."""
    in_memory = torch.from_numpy(vectors.take(np.arange(len(vectors))))

    def search_with_torch(context: Contexts) -> Array:
        encoded = ContextEncoding(torch.from_numpy(context.vectors))
        rows = [by_torch.search(encoded.select(i), in_memory, k=TOP_K) for i in range(encoded.batch_size)]
        return torch.cat(rows).numpy()

    ways: dict[str, Callable[[Contexts], Array]] = {
        "torch": search_with_torch,
        "scan": lambda context: search(context, vectors, k=TOP_K).rows,
        "scan_int8": lambda context: search(context, small, k=TOP_K).rows,
    }
    singles = [contexts.select([i]) for i in range(min(2, len(contexts)))]
    times = measure_interleaved_ms(
        {name: partial(search_each, way, singles) for name, way in ways.items()}, repeats=repeats
    )
    if contexts.n_codes > 1:  # for one code these are the score itself
        ways["maxsim-max"] = lambda context: _search_by_largest_logit(context, vectors)
        ways["maxsim-sum"] = lambda context: _search_by_logit_sum(context, vectors)
    for name, way in ways.items():
        best_rows = truth if name == "scan" else way(contexts)
        row = {"kind": name, "contexts": contexts.batch_size, **_measure_agreement(best_rows, truth)}
        if name in times:
            row |= {"ms": times[name] / len(singles), "vs_scan": times["scan"] / times[name]}
        yield row | {"size_mb": compute_size_mb(small if name == "scan_int8" else vectors)}


def _measure_faiss(
    searcher: FaissSearch, contexts: Contexts, truth: Array, *, repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of one FAISS index."""
    singles = [contexts.select([i]) for i in range(min(TIMED, len(contexts)))]

    def scan_single() -> object:
        return search(singles[0], searcher.vectors, k=TOP_K)

    for length, effort in TRIED[searcher.meta.kind]:

        def find(context: Contexts, length: int = length, effort: int = effort) -> Array:
            return searcher.search(context, top_k=TOP_K, list_length=length, effort=effort).rows

        # The scan takes its turns too, so that the ratio is of times on the same, perhaps busy, machine.
        peers: dict[str, Callable[[], object]] = {"index": partial(search_each, find, singles), "scan": scan_single}
        times = measure_interleaved_ms(peers, repeats=repeats)
        ms = times["index"] / len(singles)
        yield {
            "kind": searcher.meta.kind,
            "contexts": contexts.batch_size,
            "list_length": length,
            "effort": effort,
            **_measure_agreement(find(contexts), truth),
            "ms": ms,
            "vs_scan": times["scan"] / ms,
        }


def _measure_certified(contexts: Contexts, vectors: Vectors) -> dict[str, Any]:
    searcher = FaissSearch(build_faiss(vectors, kind="ivf-flat", nlist=1), vectors)
    exactness = searcher.search(contexts, top_k=TOP_K, exactness="certified", list_length=LONGEST_LIST).exactness
    return {
        "kind": "certified",
        "contexts": len(exactness),
        "list_length": LONGEST_LIST,
        "share": exactness.count("certified") / len(exactness),
    }


def search_each(way: Callable[[Any], object], contexts: Sequence[Any]) -> None:
    """Answer one context after the other."""
    for context in contexts:
        way(context)


def _measure_agreement(retrieved: Array, truth: Array) -> dict[str, float]:
    """The shares of the true rows [contexts, k] that are among those found, and of the first ones."""
    recall = (truth[:, :, None] == retrieved[:, None]).any(axis=2).mean()
    return {"recall10": float(recall), "top1": float((retrieved[:, 0] == truth[:, 0]).mean())}


def _search_by_largest_logit(contexts: Contexts, vectors: Vectors) -> Array:
    """The ten rows [batch, 10] whose largest inner product with any code is highest."""
    largest = [
        np.stack([(block.read_vectors() @ codes.T).max(axis=1) for codes in contexts.vectors])
        for block in vectors.iter_blocks(CHUNK)
    ]
    order: Array = np.argsort(-np.concatenate(largest, axis=1), axis=1, kind="stable")[:, :TOP_K]
    return order


def _search_by_logit_sum(contexts: Contexts, vectors: Vectors) -> Array:
    """The ten rows [batch, 10] with the highest sum of inner products, which is that with the sum of the codes."""
    return search(Contexts(contexts.vectors.sum(axis=1, keepdims=True)), vectors, k=TOP_K).rows
