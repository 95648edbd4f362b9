"""Measures a requested recall: the settings that `index.tuning` chooses, evaluated on held-out contexts.

Two rows for each kind of FAISS index: its default settings, and those that `tune` chose on half of the contexts. Both
answer the other half one context at a time, beside the scan of the same stored vectors; recall is counted against that
scan. `build_mb` is the peak memory of building above that of a process that has already read the mapped vectors.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import interleaved_ms, peak_extra_mb
from benchmarks.search.indexed import TIMED, TOP_K, each_of, faiss_threads, recall_of
from benchmarks.search.vectors import size_mb
from polyencoder.index.faiss.description import FaissFile
from polyencoder.index.faiss.file import build_faiss
from polyencoder.index.faiss.kinds import Parameters, parse_faiss
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.faiss.tuning import tune
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, search

AT_ONCE = 32  # contexts that recall is measured with together, as in `FolderIndex.tune`


def measure(
    vectors: Vectors, contexts: ContextEncoding, *, kinds: Sequence[str], recall: float, repeats: int
) -> list[dict[str, Any]]:
    """The rows of the report. FAISS's files go beside the vectors, those of one kind after the other.

    Args:
        vectors: what is indexed.
        contexts: of which the first half is measured by `tune`, and the second held out.
        kinds: of FAISS index, with their parameters, as of `polyencoder index --faiss`.
        recall: the requested recall.
        repeats: of each timing.
    """
    half = contexts.batch_size // 2
    known = [contexts.select(slice(i, min(i + AT_ONCE, half))) for i in range(0, half, AT_ONCE)]
    others = [contexts.select(i) for i in range(half, contexts.batch_size)]
    truth = torch.cat([search(one, vectors, k=TOP_K).indices for one in others])
    about = {
        "case": "recall",
        "rows": len(vectors),
        "dtype": str(vectors.dtype).removeprefix("torch."),
        "codes": contexts.n_codes,
    }
    rows: list[dict[str, Any]] = []
    for asked in kinds:
        kind, parameters = parse_faiss(asked)
        start, of_processor = time.perf_counter(), time.process_time()  # with all cores; only searches have torch's
        made: list[FaissFile] = []

        def build(kind: str = kind, parameters: Parameters = parameters, made: list[FaissFile] = made) -> None:
            made.append(build_faiss(vectors, kind=kind, **parameters))

        peak = peak_extra_mb(build, warm_up=False)
        built = {
            "build_s": time.perf_counter() - start,
            "build_cpu_s": time.process_time() - of_processor,
            "build_mb": peak,
            "index_mb": (vectors.folder / made[0].file).stat().st_size / 2**20,
            "vectors_mb": size_mb(vectors),
        }
        with faiss_threads(torch.get_num_threads()):
            for settings in _settings(made[0], vectors, known, others, truth, recall=recall, repeats=repeats):
                rows.append(about | {"kind": asked} | settings | built)
    return rows


def _settings(
    faiss: FaissFile,
    vectors: Vectors,
    known: Sequence[ContextEncoding],
    others: Sequence[ContextEncoding],
    truth: Tensor,
    *,
    recall: float,
    repeats: int,
) -> Iterator[dict[str, Any]]:
    """Rows of one FAISS index: with its default settings, and with those that `tune` chose."""
    answered = partial(_answered, contexts=others, truth=truth, repeats=repeats)
    searcher = FaissSearch(faiss, vectors)
    yield {"settings": "untold"} | answered(searcher)
    start = time.perf_counter()
    tuned = tune(searcher, known, recall=recall, top_k=TOP_K)
    seconds = time.perf_counter() - start
    chosen = {
        "settings": f"recall {recall:g}",
        "tune_s": seconds,
        "effort": tuned.effort,
        "list_length": tuned.list_length,
        "contexts": tuned.contexts,
        "measured": tuned.measured,
        "error": tuned.error,
    }
    yield chosen | answered(FaissSearch(dataclasses.replace(faiss, tuned=tuned), vectors))


def _answered(
    searcher: FaissSearch, *, contexts: Sequence[ContextEncoding], truth: Tensor, repeats: int
) -> dict[str, Any]:
    """The results of the index with its own settings, one context at a time, and the time of a few searches."""

    def find(context: ContextEncoding) -> Tensor:
        return searcher.search(context, top_k=TOP_K).rows

    found = recall_of(torch.cat([find(one) for one in contexts]), truth)
    timed = contexts[:TIMED]
    # The scan takes its turns too, so that the ratio is of times on the same, perhaps busy, machine.
    peers: dict[str, Callable[[], object]] = {
        "index": partial(each_of, find, timed),
        "scan": partial(search, timed[0], searcher.vectors, k=TOP_K),
    }
    times = interleaved_ms(peers, repeats=repeats)
    ms = times["index"] / len(timed)
    return {
        "held_out": len(contexts),
        "recall10": found.mean().item(),
        "recall10_error": found.std(correction=0).item() / len(found) ** 0.5,
        "ms": ms,
        "scan_ms": times["scan"],
        "vs_scan": times["scan"] / ms,
    }
