"""Accuracy and time of contenders, and the table of several reports."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common import interleaved_ms
from benchmarks.uni.contenders import Late, Score
from benchmarks.uni.data import Data
from polyencoder.evaluation.metrics import ranks

EVALUATED = 64  # examples at once
COUNTS = (20, 100)


@torch.no_grad()
def example_ranks(model: Late, data: Data) -> list[int]:
    """The rank of each example's label among its candidates, from 1."""
    found = torch.zeros(len(data), dtype=torch.long)
    for rows, contexts, packed, index in data.evaluated(EVALUATED):
        scores = model(contexts, packed, index).float().masked_fill(index < 0, -torch.inf)
        places = [data.own[row].index(data.labels[row]) for row in rows]
        found[rows] = ranks(scores, torch.tensor(places, device=scores.device)).cpu()
    numbers: list[int] = found.tolist()
    return numbers


def metrics(found: Sequence[int]) -> dict[str, float]:
    """R@1 and its standard error in percent, and MRR."""
    first = np.array(found) == 1
    share = first.mean()
    error = (share * (1 - share) / len(found)) ** 0.5
    return {"R@1": 100 * share, "standard error": 100 * error, "MRR": float((1 / np.array(found)).mean())}


def difference(found: Sequence[int], other: Sequence[int]) -> tuple[float, float]:
    """How much larger R@1 is than another's on the same examples, in points, and the standard error of that."""
    by = (np.array(found) == 1).astype(float) - (np.array(other) == 1)
    return 100 * by.mean(), 100 * by.std() / len(by) ** 0.5


@torch.no_grad()
def rank_ms(models: Mapping[str, Score], data: Data, *, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each model to score 20 and 100 candidates for one context, from tokens: medians over contexts.

    Of processor time on a CPU. The models take turns.
    """
    clock = time.process_time if data.device.type == "cpu" else time.perf_counter
    rng, many = np.random.default_rng(0), len(data.candidates)
    found: dict[str, dict[str, float]] = {}
    for n in COUNTS:
        lists = [(int(rng.integers(len(data))), rng.choice(many, n, replace=many < n).tolist()) for _ in range(repeats)]
        works = {name: partial(_score_next, model, data, itertools.cycle(lists)) for name, model in models.items()}
        found[str(n)] = interleaved_ms(works, repeats=repeats, clock=clock)
    return found


def _score_next(model: Score, data: Data, lists: Any) -> None:
    row, texts = next(lists)
    model(data.contexts([row]), data.packed(texts)).cpu()


def table(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of `start` and of each report, with differences from the start, and from `late` if it is among them."""
    first = reports[0]
    late = next((one for one in reports if one["contender"] == "late"), None)
    rows = [{"system": "start", **first["start"]}]
    for one in reports:
        found = one["ranks"]["trained"]
        gained, error = difference(found, one["ranks"]["start"])
        row = {"system": one["contender"], **one["trained"], "gained": f"{gained:+.2f} ± {error:.2f}"}
        if late is not None and one is not late:
            over, error = difference(found, late["ranks"]["trained"])
            row["over late"] = f"{over:+.2f} ± {error:.2f}"
        rows.append({**row, **{name: one[name] for name in ("updates", "examples_per_second", "seconds", "peak_gb")}})
    summary = {
        f"ms, {n} candidates, {name}": statistics.median(one["ms"][n][name] for one in reports)
        for n in first["ms"]
        for name in first["ms"][n]
    }
    return {"benchmark": "uni", "machine": first["machine"], "rows": rows, "summary": summary}
