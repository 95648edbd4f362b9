"""Measures the paper's Tables 5 and 9: the time to answer ConvAI2 contexts with many candidates, with encoding.

ParlAI's `transformer/polyencoder` and our rankers have the same transformer, a BERT-base with random weights (times do
not depend on them), and the same dictionary: ParlAI's agent is built and saved, and our poly-encoder is loaded from
that file. The candidates' vectors are given beforehand: random ones, for texts that repeat, since times do not depend
on them; but ours and ParlAI's must find the same reply. The systems take turns with each context.

Without ParlAI's data (`datapath` is None) the vocabulary is trained on the texts, and its agent is left out. "ParlAI's
formula", the agent's scoring with our tower, is always measured.

A cross-encoder has no vectors of candidates; it answers fewer contexts, given in its row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import get_time
from benchmarks.search import systems
from benchmarks.search.systems import BERT_BASE, FORMULA, OURS, PARLAI, Answer
from polyencoder.index.meta import get_separable_model

COUNTS = (1_000, 100_000)
LOW = ", bf16"
WARM_UP = 3  # uncounted contexts


def measure(
    datapath: Path | None,
    texts: Sequence[str],
    contexts: Sequence[list[str]],
    folder: Path,
    *,
    size_of: Mapping[str, int] = BERT_BASE,
    counts: Sequence[int] = COUNTS,
    cross: tuple[int, int],
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """A row for each system and number of candidates; `cross` is how many contexts and candidates the last one has."""
    theirs = None
    if datapath is None:
        all_texts = [*texts, *(turn for turns in contexts for turn in turns)]
        ranker = systems.make_ranker(all_texts, size_of, device=device, n_codes=systems.CODES)
    else:
        theirs, ranker = systems.build_same_model(datapath, texts, folder, size_of, device=device)
    vectors = torch.randn(max(counts), get_separable_model(ranker).dim).to(ranker.device)
    rows = []
    for n in counts:
        candidates = [texts[i % len(texts)] for i in range(n)]
        answers = systems.build_ours(ranker, vectors[:n], candidates)
        if theirs is not None:
            answers[PARLAI] = systems.build_agent(theirs, vectors[:n], candidates)
        rows += _compare(answers, contexts, candidates=n)
    n_contexts, n = cross[0], min(cross[1], len(texts))
    crossed = {"cross-encoder": systems.build_cross(ranker, texts[:n], bf16=False)}
    if ranker.device.type == "cuda":
        crossed[f"cross-encoder{LOW}"] = systems.build_cross(ranker, texts[:n], bf16=True)
    return rows + _compare(crossed, contexts[:n_contexts], candidates=n)


def compute_speedup(
    rows: Sequence[dict[str, Any]], column: str, *, ours: str = OURS, than: str = PARLAI
) -> float | None:
    """How many times faster than a peer one of ours is at the most candidates; `column` is the time."""
    largest = max((row["candidates"] for row in rows), default=0)
    times = {row["system"]: row[column] for row in rows if row["candidates"] == largest}
    return times[than] / times[ours] if {ours, than} <= times.keys() else None


def measure_answers(
    answers: Mapping[str, Answer], contexts: Sequence[list[str]], *, candidates: int, warm_up: int = WARM_UP
) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """A row for each system, which take turns with each context, and their replies; `warm_up` contexts come before.

    Times are wall-clock, but `processor_ms`, which other processes on the machine hardly change.
    """
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in answers}
    replies: dict[str, list[str]] = {name: [] for name in answers}
    for answer in answers.values():
        for turns in contexts[:warm_up]:
            answer(turns)
    for turns in contexts:
        for name, answer in answers.items():
            processor, start = time.process_time(), get_time()
            reply, encoding = answer(turns)
            processor = time.process_time() - processor
            whole = get_time() - start
            seconds[name].append((whole, processor, whole - encoding))
            replies[name].append(reply)
    rows = []
    for name, of_system in seconds.items():
        wall_times, processor_times, rests = zip(*of_system, strict=True)
        times = {
            "mean_ms": 1e3 * statistics.mean(wall_times),
            "median_ms": 1e3 * statistics.median(wall_times),
            "processor_ms": 1e3 * statistics.median(processor_times),
            "after_encoding_ms": 1e3 * statistics.median(rests),
        }
        rows.append({"system": name, "candidates": candidates, "contexts": len(contexts), **times})
    return rows, replies


def share_equal(replies: Sequence[str], expected: Sequence[str] | None) -> float | None:
    """The share of replies that equal the expected ones; None without these."""
    if expected is None:
        return None
    return sum(map(str.__eq__, replies, expected)) / len(replies)


def _compare(answers: Mapping[str, Answer], contexts: Sequence[list[str]], *, candidates: int) -> list[dict[str, Any]]:
    """The rows of a number of candidates, with how often ours replies as ParlAI's does."""
    rows, replies = measure_answers(answers, contexts, candidates=candidates)
    peer = replies.get(PARLAI, replies.get(FORMULA))
    same = {name: share_equal(replies[name], peer) for name in (OURS, f"{OURS}{LOW}") if name in replies}
    return [{"case": "answering", **row, "replies_as_parlai": same.get(row["system"])} for row in rows]
