"""Answering on a GPU: the paper's Table 5."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.search.answering import SIZE, compute_speedup, measure
from benchmarks.search.systems import FORMULA
from benchmarks.search.texts import make_candidates, make_contexts


def measure_answering(*, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds an answer with 1,000 and 100,000 candidates: bi, poly-m, first-m; the cross-encoder with 1,000."""
    size = {"layers": 2, "dim": 32, "heads": 2} if quick else SIZE
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(
            None,
            make_candidates(1_000),
            make_contexts(3 if quick else 100),
            Path(folder),
            size_of=size,
            counts=(20, 100) if quick else (1_000, 100_000),
            cross=(1, 20) if quick else (10, 1_000),
            device=device,
        )
    table = [row for row in rows if not row["system"].startswith("cross-encoder")]
    faster = compute_speedup(table, "after_encoding_ms", than=FORMULA)
    return {"rows": rows, "summary": {"poly64_scoring_vs_formula": faster}}
