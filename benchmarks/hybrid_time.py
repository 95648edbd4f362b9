"""The time of searches by words, by vectors and by both, among many texts: for `benchmarks.hybrid`.

Texts are real (`benchmarks.search.texts.read_texts`); so are queries: contexts of ConvAI2's validation examples, once
their last turn alone and once whole. Vectors are drawn (`benchmarks.search.vectors.DRAWN`), with one code for each
context or 16, as time does not depend on what they mean. Queries are searched one at a time, each by all systems in
turn; times are processor milliseconds without the encoding of the context.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.search.texts import read_contexts, read_texts
from benchmarks.search.vectors import draw_contexts, drawn
from polyencoder.index import Candidate, Fingerprints
from polyencoder.index.folder import FolderIndex
from polyencoder.index.open import make_index
from polyencoder.scoring import ContextEncoding

DIM = 384  # MiniLM's
CODES = {"bi": 1, "poly": 16}
_BY_VECTORS = Fingerprints("benchmark")
_VECTORS: dict[str, Any] = {"exactness": "exact"}
_BOTH: dict[str, Any] = {**_VECTORS, "hybrid": True}


def measure(datapath: Path, rows: int, folder: Path, *, queries: int) -> list[dict[str, Any]]:
    """A row of the report for each kind of query and of search."""
    start = time.process_time()
    make_index(_candidates(read_texts(datapath, rows)), folder / "index", _BY_VECTORS, words=True).close()
    built = time.process_time() - start
    contexts = read_contexts(datapath, queries)
    with closing(FolderIndex.open(folder / "index", _BY_VECTORS)) as index:
        encoded = {name: draw_contexts(index.vectors, len(contexts), codes) for name, codes in CODES.items()}
        systems = {"words": ("bi", {"words_only": True})}
        for name in CODES:
            systems |= {f"{name}, vectors": (name, _VECTORS), f"{name}, both": (name, _BOTH)}
        found = _timed(index, contexts, encoded, systems)
        index.build_faiss("ivf-flat")
        systems = {
            f"{name}, {what}, ivf-flat": (name, {"hybrid": what == "both"})
            for name in CODES
            for what in ("vectors", "both")
        }
        found += _timed(index, contexts, encoded, systems)
        size = sum(path.stat().st_size for path in index.folder.iterdir()) / 2**20
    return [{"rows": rows, **row, "built_s": built, "index_mb": size} for row in found]


def _timed(
    index: FolderIndex,
    contexts: Sequence[list[str]],
    encoded: dict[str, ContextEncoding],
    systems: dict[str, tuple[str, dict[str, Any]]],
) -> list[dict[str, Any]]:
    found = []
    for kind in ("last turn", "whole dialogue"):
        times: dict[str, list[float]] = {system: [] for system in systems}
        for place in (0, *range(len(contexts))):  # the first one twice: the first time is not counted
            turns = contexts[place][-1:] if kind == "last turn" else contexts[place]
            for system, (name, options) in systems.items():
                one = encoded[name].select(torch.tensor([place]))
                start = time.process_time()
                index.search(one, texts=[turns], **options)
                times[system].append(1000 * (time.process_time() - start))
        for system, values in times.items():
            values = sorted(values[1:])
            slow = values[round(0.9 * (len(values) - 1))]
            found.append({"query": kind, "system": system, "ms": statistics.median(values), "ms_90%": slow})
    return found


def _candidates(texts: Sequence[str]) -> Iterator[Candidate]:
    numbered = enumerate(texts)
    for shard in drawn(len(texts), DIM):
        for vector, (number, text) in zip(shard.numpy(), islice(numbered, len(shard)), strict=True):
            yield Candidate(str(number), text, vector=vector)
