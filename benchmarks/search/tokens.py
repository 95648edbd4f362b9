"""Searches of a late-interaction encoder beside PLAID, the index of PyLate: processor time, recall, size.

Both have the token vectors of one encoder. Ours is an index folder with tokens in 8 bits: vectors of the context find
100 candidates, which their tokens order. PLAID (the package fast-plaid, if it is installed, with its defaults) sums the
largest cosine of each token of the context. `recall10` is the share of the ten best among all candidates, by the same
score. `ms`, the median for a context, includes its encoding (`encoding_ms`); `build_s` of ours that of all texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import import_peer, measure_processor_ms
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker

TOP_K = 10
BATCH = 128  # texts that are encoded together
OURS, PLAID = "late-interaction", "PLAID"

Find = Callable[[list[str]], list[int]]


@torch.inference_mode()
def measure(ranker: Ranker, texts: Sequence[str], contexts: Sequence[list[str]], folder: Path) -> list[dict[str, Any]]:
    """A row for each system, whose index is made in the folder; the ranker is a late-interaction encoder."""
    batches = [ranker.text.batch_candidates(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
    tokens = [read.tokens.clone() for batch in batches for read in ranker.model.read_candidates(batch)]
    build = {OURS: partial(_build_ours, ranker, texts, folder / OURS)}
    if find_spec("fast_plaid"):
        build[PLAID] = partial(_build_plaid, ranker, tokens, folder / PLAID)
    systems: dict[str, tuple[Find, Find]] = {}
    build_s: dict[str, float] = {}
    for name, make in build.items():
        start = time.process_time()
        systems[name] = make()
        build_s[name] = time.process_time() - start
    times: dict[str, list[float]] = {name: [] for name in ("encoding", *systems)}
    recalls: dict[str, list[float]] = {name: [] for name in systems}
    for turns in contexts:
        times["encoding"].append(measure_processor_ms(partial(_encode, ranker, turns)))
        for name, (find, find_all) in systems.items():
            times[name].append(measure_processor_ms(partial(find, turns)))
            recalls[name].append(len({*find(turns)} & {*find_all(turns)}) / TOP_K)
    about = {"case": "tokens", "rows": len(texts), "contexts": len(contexts)}
    return [
        {
            **about,
            "system": name,
            "ms": statistics.median(times[name]),
            "encoding_ms": statistics.median(times["encoding"]),
            "recall10": statistics.mean(recalls[name]),
            "build_s": build_s[name],
            "size_mb": sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file()) / 1e6,
        }
        for name in systems
    ]


def _encode(ranker: Ranker, turns: list[str]) -> Tensor:
    """The vectors of the context's tokens, [1, tokens, dim]."""
    tokens: Tensor = ranker.model.read_contexts(ranker.text.batch_contexts([turns])).tokens
    return tokens.float()


def _build_ours(ranker: Ranker, texts: Sequence[str], folder: Path) -> tuple[Find, Find]:
    candidates = [{"id": str(row), "text": text} for row, text in enumerate(texts)]
    index = ranker.index(candidates, folder, store_tokens="int8")

    def build_find(count: int) -> Find:
        search = Searcher(ranker, index, top_k=TOP_K, rerank_k=count, keep_turns=True)
        return lambda turns: [int(hit.id) for hit in search([turns])[0]]

    return build_find(100), build_find(len(texts))


def _build_plaid(ranker: Ranker, tokens: list[Tensor], folder: Path) -> tuple[Find, Find]:
    index = import_peer("fast_plaid.search").FastPlaid(index=str(folder), device="cpu")
    index.create([vectors.float() for vectors in tokens])
    joined, lengths = torch.cat(tokens), torch.tensor([len(vectors) for vectors in tokens])

    def find(turns: list[str]) -> list[int]:
        return [row for row, _ in index.search(_encode(ranker, turns), top_k=TOP_K, show_progress=False)[0]]

    def find_all(turns: list[str]) -> list[int]:
        largest = torch.segment_reduce(joined @ _encode(ranker, turns)[0].T, "max", lengths=lengths)
        rows: list[int] = largest.sum(1).topk(TOP_K).indices.tolist()
        return rows

    return find, find_all
