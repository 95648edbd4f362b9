"""The exact search of stored vectors beside torch's products in float32, FAISS and usearch: processor time.

For each number of codes, one context at a time, the ten best: `torch` (`by_torch`, the vectors in memory), `scan` (the
library's search of the files), `scan_float32` (the same without numkong); and for one code FAISS' `IndexFlatIP` and
`IndexRefineFlat` over `SQ8`, which is not exact, and usearch's exact search, if they are installed. `differ` counts the
contexts whose rows, in order, are not torch's; rows whose scores differ by less than 1 in a million count as equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks.common import Work, import_peer, measure_interleaved_ms
from benchmarks.search import by_torch
from benchmarks.search.indexed import search_each
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, score
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.rows import ArrayRows
from polyencoder.search.scan import search

TOP_K = 10
TIMED = 3  # contexts
REFINED = 4  # of IndexRefineFlat: k_factor

Find = Callable[[ContextEncoding], Array]


def measure(
    vectors: Vectors, contexts_of: Callable[[int], ContextEncoding], *, codes: int, repeats: int
) -> list[dict[str, Any]]:
    """The rows of the report; `contexts_of` makes contexts of this many codes."""
    in_memory = vectors.take(np.arange(len(vectors)))
    rows = []
    for count in sorted({1, codes}):
        contexts = contexts_of(count)
        each = [contexts.select(i) for i in range(contexts.batch_size)]
        ways: dict[str, Find] = {
            "torch": partial(_search_with_torch, torch.from_numpy(in_memory)),
            "scan": lambda context: search(Contexts.from_encoding(context), vectors, k=TOP_K).rows,
            "scan_float32": lambda context: search(Contexts.from_encoding(context), ArrayRows(in_memory), k=TOP_K).rows,
            **(dict(_iter_peers(in_memory)) if count == 1 else {}),
        }
        truth = [ways["torch"](context) for context in each]
        peers: dict[str, Work] = {name: partial(search_each, way, each[:TIMED]) for name, way in ways.items()}
        times = measure_interleaved_ms(peers, repeats=repeats, clock=time.process_time)
        for name, way in ways.items():
            pairs = zip(each, truth, strict=True)
            differ = sum(_has_differences(way(context), best, context, in_memory) for context, best in pairs)
            ms = times[name] / len(each[:TIMED])
            about = {"case": "scan", "rows": len(vectors), "codes": count, "kind": name, "contexts": len(each)}
            rows.append({**about, "processor_ms": ms, "vs_torch": times["torch"] / times[name], "differ": differ})
    return rows


def _search_with_torch(vectors: torch.Tensor, context: ContextEncoding) -> Array:
    return by_torch.search(context, vectors, k=TOP_K).numpy()


def _iter_peers(vectors: Array) -> Iterator[tuple[str, Find]]:
    """Other libraries' searches by inner product."""
    if find_spec("faiss"):
        faiss = import_peer("faiss")
        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(vectors)
        small = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        refined = faiss.IndexRefineFlat(small)
        refined.train(vectors)
        refined.add(vectors)
        refined.k_factor = REFINED
        yield "faiss IndexFlatIP", lambda context: flat.search(context.vectors[0].numpy(), TOP_K)[1]
        yield "faiss IndexRefineFlat(SQ8)", lambda context: refined.search(context.vectors[0].numpy(), TOP_K)[1]
    if find_spec("usearch"):
        usearch = import_peer("usearch.index")

        def search_exactly(context: ContextEncoding) -> Array:
            matches = usearch.search(vectors, context.vectors[0, 0].numpy(), TOP_K, usearch.MetricKind.IP, exact=True)
            keys: Array = np.asarray(matches.keys).reshape(1, -1)
            return keys

        yield "usearch exact", search_exactly


def _has_differences(rows: Array, best: Array, context: ContextEncoding, vectors: Array) -> bool:
    """Whether the rows [1, k] are others than the best, and their scores, too."""
    if np.array_equal(rows, best):
        return False
    indices = (numbers[0].astype(np.int64) for numbers in (rows, best))
    ours, theirs = (score(context, torch.from_numpy(vectors[selected]).double()) for selected in indices)
    return not torch.allclose(ours, theirs, rtol=1e-6)
