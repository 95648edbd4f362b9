"""Answering and searching on a GPU: the paper's Table 5, and a million vectors."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import interleaved_ms
from benchmarks.gpu.fixtures import check
from benchmarks.search.answering import SIZE, measure, times_faster
from benchmarks.search.systems import FORMULA
from benchmarks.search.texts import made_candidates, made_contexts
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring import search as scan

TOP_K, CODES, DIM = 10, 64, 384


def answering(*, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds an answer with 1,000 and 100,000 candidates: bi, poly-m, first-m; the cross-encoder with 1,000."""
    size = {"layers": 2, "dim": 32, "heads": 2} if quick else SIZE
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(
            None,
            made_candidates(1_000),
            made_contexts(3 if quick else 100),
            Path(folder),
            size_of=size,
            counts=(20, 100) if quick else (1_000, 100_000),
            cross=(1, 20) if quick else (10, 1_000),
            device=device,
        )
    table = [row for row in rows if not row["system"].startswith("cross-encoder")]
    faster = times_faster(table, "after_encoding_ms", than=FORMULA)
    return {"rows": rows, "summary": {"poly64_scoring_vs_formula": faster}}


def million(*, device: str, quick: bool) -> dict[str, Any]:
    """The ten best of a million vectors by a poly-encoder's score, 64 codes, one context: float32 and bfloat16."""
    rows = 2_000 if quick else 1_000_000
    vectors = torch.nn.functional.normalize(torch.randn(rows, DIM, device=device), dim=1) * 20**0.5
    codes = torch.nn.functional.normalize(torch.randn(8, CODES, DIM, device=device), dim=2) * 20**0.5
    contexts = ContextEncoding(codes)
    ways = {"float32": None, "bfloat16": torch.bfloat16}
    one = contexts.select(0)
    times = interleaved_ms(
        {name: partial(scan, one, vectors, k=TOP_K, compute_dtype=dtype) for name, dtype in ways.items()}, repeats=10
    )
    together = interleaved_ms({"float32": partial(scan, contexts, vectors, k=TOP_K)}, repeats=3)["float32"]
    found = scan(contexts, vectors, k=TOP_K)
    low = scan(contexts, vectors, k=TOP_K, compute_dtype=torch.bfloat16)
    on_cpu = scan(ContextEncoding(codes.cpu()).select(0), vectors.cpu(), k=TOP_K)
    agreement = float((found.indices.unsqueeze(2) == low.indices.unsqueeze(1)).any(2).float().mean())
    table = [{"rows": rows, "codes": CODES, "dtype": name, "ms": ms} for name, ms in times.items()]
    table.append({"rows": rows, "codes": CODES, "dtype": "float32, of 8 contexts at once", "ms": together / 8})
    differing = float((found.indices[0].cpu() != on_cpu.indices[0]).float().mean())
    return {
        "rows": table,
        "summary": {"float32_ms": times["float32"], "bfloat16_ms": times["bfloat16"], "bfloat16_recall10": agreement},
        "checks": [check("ten best of the CPU that differ", differing, limit=0.0)],
    }
