"""The engines side by side: the same vectors in an index folder, in Milvus and in PostgreSQL, beside a scan in memory.

Each index is built of vectors that exist, and answers the same contexts one at a time, in each way that it can. `same`
is the share of contexts whose ids, in order, are those of the scan, and `recall10` the share of its ids. Milvus Lite's
file is made in the folder; PostgreSQL is a server of yours (`--postgres`), in which a table is made and left.
`built_peak_mb` and `peak_mb` are the memory that this process, which for a folder is the only one, needs more at its
peak while it builds the index, and while it searches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import measure_interleaved_ms, measure_peak_extra_mb
from benchmarks.search.indexed import TOP_K, search_each
from polyencoder.index import Candidate, Fingerprints, Hit, open_index
from polyencoder.index.open import make_index
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search

ENGINES = ("folder", "milvus", "postgres")
TIMED = 20  # contexts
_WAYS = ("exact", "certified", "approximate")
_BY_VECTORS = Fingerprints("benchmark")


def measure(
    vectors: Vectors,
    contexts: ContextEncoding,
    folder: Path,
    *,
    engines: Sequence[str],
    postgres: str | None,
    repeats: int,
) -> list[dict[str, Any]]:
    """The rows of the report: one for each index and way to search it."""
    arrays = Contexts.from_encoding(contexts)
    single = [arrays.select([i]) for i in range(len(arrays))]
    truth = [[str(row) for row in search(context, vectors, k=TOP_K).rows[0].tolist()] for context in single]
    scan = partial(search_each, partial(search, rows=vectors, k=TOP_K), single[:TIMED])
    rows: list[dict[str, Any]] = []
    for engine in engines:
        for kind, where, options in _iter_indexes(engine, folder, postgres):
            start = time.perf_counter()
            build = partial(_build, vectors, where, options)
            build_peak = measure_peak_extra_mb(build, warm_up=False)
            seconds = time.perf_counter() - start
            index = open_index(where, _BY_VECTORS)
            for way in _WAYS:
                find = partial(index.search, top_k=TOP_K, exactness=way)
                all_hits: list[list[Hit]] = []
                peak = measure_peak_extra_mb(partial(_collect_hits, all_hits, single, find), warm_up=False)
                ids = [[hit.id for hit in hits] for hits in all_hits]
                timed = {"scan": scan, "index": partial(search_each, find, single[:TIMED])}
                times = measure_interleaved_ms(timed, repeats=repeats)
                rows.append(
                    {
                        "case": "engines",
                        "engine": engine,
                        "kind": kind,
                        "exactness": way,
                        "rows": len(vectors),
                        "codes": contexts.n_codes,
                        "built_per_s": len(vectors) / seconds,
                        "same": sum(map(list.__eq__, ids, truth)) / len(truth),
                        "recall10": sum(len({*row} & {*best}) for row, best in zip(ids, truth, strict=True))
                        / sum(map(len, truth)),
                        "certified": sum(hits[0].found == "certified" for hits in all_hits) / len(all_hits),
                        "built_peak_mb": build_peak,
                        "peak_mb": peak,
                        "ms": times["index"] / len(single[:TIMED]),
                        "vs_scan": times["index"] / times["scan"],
                    }
                )
            index.close()
    return rows


def _iter_indexes(engine: str, folder: Path, postgres: str | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The kind, the address and the settings of each index of an engine."""
    if engine == "folder":
        yield "flat", str(folder / "flat"), {}
        yield "hnsw", str(folder / "hnsw"), {"faiss": "hnsw"}
    elif engine == "milvus":
        yield "flat", f"milvus:{folder / 'milvus.db'}#flat", {"milvus": "flat"}
    else:
        for kind in ("flat", "hnsw"):
            yield kind, f"{postgres}#benchmark_{kind}_{os.getpid()}", {"postgres": kind}


def _iter_candidates(vectors: Vectors) -> Iterator[Candidate]:
    step = 4096
    for first in range(0, len(vectors), step):
        shard = vectors.take(np.arange(first, min(first + step, len(vectors))))
        yield from (Candidate(str(first + i), f"candidate {first + i}", vector=row) for i, row in enumerate(shard))


def _build(vectors: Vectors, where: str, options: dict[str, Any]) -> None:
    make_index(_iter_candidates(vectors), where, _BY_VECTORS, **options).close()


def _collect_hits(
    results: list[list[Hit]], contexts: Sequence[Contexts], find: Callable[[Contexts], list[list[Hit]]]
) -> None:
    results += (find(context)[0] for context in contexts)
