"""Measures time and memory of answers among 1,000 to 1,000,000 candidates, beside sentence-transformers.

One encoder is used for our bi-, poly- and cross-encoder and for sentence-transformers' two models; added layers are
untrained, since times do not depend on them. Ours answer by a `Searcher` over an index folder, theirs by `encode` and
`util.semantic_search` over a tensor (by dot products of vectors of length 1, as its documentation advises for speed),
each with its ten best; cross-encoders by `Ranker.rank` and `CrossEncoder.rank`. They take turns with each context. A
late-interaction encoder searches by a vector of each turn and rescores the best 100 by their tokens, which it reads
from their texts.

Vectors of candidates are computed beforehand: those of real texts, and copies of them (`vectors.GROWN`) for the same
texts with a number appended. A cross-encoder has no vectors: it is measured among the fewest candidates, and its time
among more is extrapolated (`inferred_ms`).

Memory is measured in a process with one system, which answers three contexts among the most candidates: its peak,
including libraries and model, and the part of it that is pages of files, such as the index, which the system can
reclaim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.common import call_alone, import_peer, read_memory_mb
from benchmarks.search.answering import measure_answers, share_equal
from benchmarks.search.systems import CODES, OURS, Answer
from benchmarks.search.texts import iter_numbered
from benchmarks.search.vectors import grow
from polyencoder.config import Architecture
from polyencoder.index import Candidate, Fingerprints, open_index
from polyencoder.index.open import make_index
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker

COUNTS = (1_000, 100_000, 1_000_000)
TOP_K = 10  # semantic_search's default
TOKENS = 360  # of a context, and of sentence-transformers' pairs
BI, LATE, CROSS = "bi-encoder", "late-interaction", "cross-encoder"
THEIR_BI, THEIR_CROSS = "SentenceTransformer", "CrossEncoder"
INDEX, TEXTS, VECTORS = "index", "texts.json", "vectors.npy"


def measure(
    backbone: str,
    texts: Sequence[str],
    contexts: Sequence[list[str]],
    folder: Path,
    *,
    counts: Sequence[int] = COUNTS,
    crossed: int,
    threads: int,
    systems: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Rows of times for each system and number of candidates, then one of memory for each system.

    Cross-encoders answer `crossed` of the contexts. The folder needs three to four kB for a candidate; without
    `systems` all are measured.
    """
    searching, crossing = (
        {name: make for name, make in kinds.items() if not systems or name in systems}
        for kinds in (SEARCHING, CROSSING)
    )
    smallest, largest = folder / str(counts[0]), folder / str(counts[-1])
    ranker = _build_ours(backbone, "bi")
    real = torch.from_numpy(ranker.encode_candidates(texts))
    rows: list[dict[str, Any]] = []
    for n in counts:
        _write(folder / str(n), list(iter_numbered(texts, n)), real, ranker)
        answers = {name: make(backbone, folder / str(n)) for name, make in searching.items()}
        timed_rows, replies = measure_answers(answers, contexts, candidates=n)
        same = {BI: share_equal(replies[BI], replies[THEIR_BI])} if {BI, THEIR_BI} <= replies.keys() else {}
        rows += [{**row, "replies_as_peer": same.get(row["system"])} for row in timed_rows]
        del answers  # and with them the vectors that are in memory
    crossed_by = {name: make(backbone, smallest) for name, make in crossing.items()}
    timed_rows, _ = measure_answers(crossed_by, contexts[:crossed], candidates=counts[0], warm_up=min(crossed, 1))
    rows += timed_rows
    rows += [
        {"system": row["system"], "candidates": n, "inferred_ms": row["median_ms"] * n / counts[0]}
        for row in timed_rows
        for n in counts[1:]
    ]
    for name in (*searching, *crossing):
        measured = smallest if name in CROSSING else largest
        memory = call_alone(_measure_memory, name, backbone, measured, contexts[:3], threads=threads)
        vectors_mb = 0.0 if name in CROSSING else (measured / VECTORS).stat().st_size / 2**20
        rows.append({"system": name, "candidates": int(measured.name), "vectors_mb": vectors_mb, **memory})
    return [{"case": "peers", **row} for row in rows]


def _measure_memory(name: str, backbone: str, folder: Path, contexts: Sequence[list[str]]) -> dict[str, float]:
    """The memory of this process, which answers these contexts by one system."""
    answer = SYSTEMS[name](backbone, folder)
    for turns in contexts:
        answer(turns)
    return {"peak_mb": read_memory_mb("VmHWM"), "mapped_mb": read_memory_mb("RssFile")}


def _write(folder: Path, texts: Sequence[str], real: Tensor, ranker: Ranker) -> None:
    """Candidates as each side has them: an index folder; a list and an array in a file."""
    folder.mkdir()
    (folder / TEXTS).write_text(json.dumps(texts), encoding="utf-8")
    size = (len(texts), real.size(1))
    theirs = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=np.float32, shape=size)

    def iter_candidates() -> Iterator[Candidate]:
        row = 0
        for shard in grow(real, len(texts)):
            end = row + len(shard)
            theirs[row:end] = normalize(shard).numpy()
            yield from (
                Candidate(None, text, vector=vector) for text, vector in zip(texts[row:end], shard.numpy(), strict=True)
            )
            row = end

    make_index(iter_candidates(), folder / INDEX, Fingerprints.of(ranker)).close()
    theirs.flush()


def _build_ours(backbone: str, architecture: Architecture) -> Ranker:
    """Cosines of mean vectors, as sentence-transformers has them."""
    kind: dict[str, Any] = {"reduction": "mean", "normalize": True} if architecture != "cross" else {}
    if architecture == "poly":
        kind["n_codes"] = CODES
    text = {"text_truncate": TOKENS}
    if architecture != "late":  # which has a vector of each turn
        kind["turn_separator"] = "none"
    return Ranker.from_backbone(backbone, architecture, device="cpu", text=text, **kind)


def _build_searcher(backbone: str, folder: Path, *, architecture: Architecture) -> Answer:
    ranker = _build_ours(backbone, architecture)
    maker = ranker if architecture == "bi" else _build_ours(backbone, "bi")  # contexts alone have turn separators
    searcher = Searcher(ranker, open_index(folder / INDEX, maker), top_k=TOP_K)

    def answer(turns: list[str]) -> tuple[str, float]:
        before = searcher.seconds["encode"]
        hits = searcher([turns])[0]
        return hits[0].text, searcher.seconds["encode"] - before

    return answer


def _build_sentence_transformer(backbone: str, folder: Path) -> Answer:
    package = import_peer("sentence_transformers")
    model = package.SentenceTransformer(backbone, device="cpu")
    model.max_seq_length = TOKENS
    vectors, texts = torch.from_numpy(np.load(folder / VECTORS)), _read_texts(folder)

    def answer(turns: list[str]) -> tuple[str, float]:
        start = time.perf_counter()
        context = model.encode(
            "\n".join(turns), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        encoded = time.perf_counter() - start
        hits = package.util.semantic_search(context, vectors, top_k=TOP_K, score_function=package.util.dot_score)[0]
        return texts[hits[0]["corpus_id"]], encoded

    return answer


def _build_cross(backbone: str, folder: Path) -> Answer:
    ranker, texts = _build_ours(backbone, "cross"), _read_texts(folder)

    def answer(turns: list[str]) -> tuple[str, float]:
        return ranker.rank(turns, texts, top_k=TOP_K)[0].text, 0.0

    return answer


def _build_cross_encoder(backbone: str, folder: Path) -> Answer:
    model = import_peer("sentence_transformers").CrossEncoder(backbone, num_labels=1, max_length=TOKENS, device="cpu")
    texts = _read_texts(folder)

    def answer(turns: list[str]) -> tuple[str, float]:
        hits = model.rank("\n".join(turns), texts, top_k=TOP_K, show_progress_bar=False)
        return texts[hits[0]["corpus_id"]], 0.0

    return answer


def _read_texts(folder: Path) -> list[str]:
    texts: list[str] = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    return texts


Make = Callable[[str, Path], Answer]
"""Builds a system from a backbone and a folder with candidates."""
SEARCHING: Mapping[str, Make] = {
    BI: partial(_build_searcher, architecture="bi"),
    OURS: partial(_build_searcher, architecture="poly"),
    LATE: partial(_build_searcher, architecture="late"),
    THEIR_BI: _build_sentence_transformer,
}
CROSSING: Mapping[str, Make] = {CROSS: _build_cross, THEIR_CROSS: _build_cross_encoder}
SYSTEMS: Mapping[str, Make] = {**SEARCHING, **CROSSING}
