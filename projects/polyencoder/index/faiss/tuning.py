"""Tuning of a FAISS index: the cheapest effort and list length that reach a recall, measured.

Recall@k is measured against the scan, on contexts from production, or at least on texts of the index itself. More
effort and longer lists hardly ever find less, so only a staircase of pairs is measured: the longest lists with the
least effort, then shorter lists with more effort. The fastest pair that reaches the recall becomes the index's default
(`FaissFile.tuned`).

The measured recall must exceed the requested one by a standard error, so that other contexts mostly reach it too. Most
contexts find all of their best, and a few lose nearly all: a sample without these few deviates by about 0 and proves
little. So the error is computed as if each context found all or nothing, as in Wilson's score test of a proportion.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from polyencoder.checks import check_count
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.faiss.file import TunedSettings
from polyencoder.index.faiss.search import LONGEST_LIST, FaissSearch
from polyencoder.index.hits import TOP_K
from polyencoder.index.options import SearchOptions
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import search

SAMPLE = 200
"""Enough contexts to measure a recall: the error is 0.007 at 0.99."""

T = TypeVar("T")

_SHORTEST_LIST = 64
_MIN_EFFORT = {"hnsw": 16, "ivf-flat": 1, "ivf-pq": 1}


def tune(
    searcher: FaissSearch,
    contexts: Sequence[Contexts],
    *,
    recall: float,
    top_k: int = TOP_K,
    allowed: Array | None = None,
    attention: str = "basic",
    source: str = "",
) -> TunedSettings:
    """Finds the fastest settings with which a FAISS index finds `recall` of the `top_k` best.

    If no settings reach the recall, those that found most are returned.

    Args:
        contexts: a sample from production, in batches that are searched together.
        recall: the share of the best to find, above 0 and at most 1.
        allowed: bool [rows], True for the rows that may be found, as in `FaissSearch.search`.
        source: where the contexts come from, stored with the result.

    Raises:
        ConfigError: under multi-head attention, whose searches score everything, or for an impossible recall.
        InputError: there are no contexts, or no rows.
    """
    recall, top_k = check_recall(recall), check_count("top_k", top_k)
    if attention == "multihead":
        raise ConfigError("under multi-head attention every search scores everything: there is no recall to reach")
    if not sum(part.batch_size for part in contexts):
        raise InputError("there are no contexts to measure recall with")
    measure = _Measure(searcher, contexts, top_k=top_k, allowed=allowed, attention=attention)
    efforts, lengths = _list_efforts(searcher), _list_lengths(searcher)
    best: tuple[float, TunedSettings] | None = None
    best_recall: TunedSettings | None = None
    idx = 0
    while lengths and idx < len(efforts):
        effort, length = efforts[idx], lengths[-1]
        recalled, seconds = measure(effort, length)
        tuned = TunedSettings(
            recall=recall,
            top_k=top_k,
            effort=effort,
            list_length=length,
            measured=round(float(recalled.mean()), 4),
            error=round((recall * (1 - recall) / len(recalled)) ** 0.5, 4),
            contexts=len(recalled),
            source=source,
            rows=len(searcher.vectors),
            vs_scan=round(measure.scan_seconds / seconds, 2),
        )
        if best_recall is None or tuned.measured > best_recall.measured:
            best_recall = tuned
        if tuned.reached and (best is None or seconds < best[0]):
            best = seconds, tuned
        if tuned.reached or (best is not None and seconds > best[0] and idx + 1 < len(efforts)):
            lengths.pop()  # this effort may suffice for shorter lists; or more effort for these takes too long
        else:
            idx += 1
    assert best_recall is not None
    return best_recall if best is None else best[1]


def check_recall(recall: Any) -> float:
    """A recall as a float, from a number of Python or numpy. Raises ConfigError for anything else."""
    is_number = isinstance(recall, (int, float, np.floating)) and not isinstance(recall, bool)
    if not is_number or not 0 < recall <= 1:
        raise ConfigError(f"recall is {recall}; it must be above 0 and at most 1, such as 0.99", argument="recall")
    return float(recall)


def sample(items: Sequence[T], n: int) -> list[T]:
    """Samples at most `n` items, deterministically, in order."""
    return [items[i] for i in sorted(np.random.default_rng(0).permutation(len(items))[:n].tolist())]


class _Measure:
    """Measures a search's recall for each context, and its time."""

    def __init__(
        self, searcher: FaissSearch, contexts: Sequence[Contexts], *, top_k: int, allowed: Array | None, attention: str
    ) -> None:
        available = len(searcher.vectors) if allowed is None else int(allowed.sum())
        if available == 0:
            raise InputError("there are no candidates to measure recall with")
        k = min(top_k, available)
        self._parts = [part for part in contexts if part.batch_size]
        # Not `search`, which scans few rows with any settings; the index may grow
        self._search = partial(searcher.search_lists, allowed=allowed, attention=attention)
        self._k = k
        start = time.perf_counter()
        tops = [search(part, searcher.vectors, k=k, allowed=allowed, attention=attention) for part in self._parts]
        self.scan_seconds = time.perf_counter() - start
        # A candidate with the k-th best score counts too; and products may differ by rounding.
        last = np.concatenate([scores for scores, _ in tops])[:, -1:]
        self._threshold = last - 1e-5 * np.maximum(np.abs(last), 1)

    def __call__(self, effort: int, list_length: int) -> tuple[Array, float]:
        """Returns the share [contexts] of the best that is found, and the seconds of all searches."""
        start = time.perf_counter()
        options = SearchOptions(top_k=self._k, effort=effort, list_length=list_length)
        results = [self._search(part, options).scores for part in self._parts]
        seconds = time.perf_counter() - start
        return (np.concatenate(results) >= self._threshold).mean(axis=1), seconds


def _list_efforts(searcher: FaissSearch) -> list[int]:
    lowest, highest = _MIN_EFFORT[searcher.meta.kind], searcher.max_effort
    efforts = [lowest << i for i in range(highest.bit_length()) if lowest << i < highest]
    return [*efforts, highest]


def _list_lengths(searcher: FaissSearch) -> list[int]:
    longest = min(LONGEST_LIST, searcher.meta.rows)
    lengths = [_SHORTEST_LIST << i for i in range(longest.bit_length()) if _SHORTEST_LIST << i < longest]
    return [*lengths, longest]
