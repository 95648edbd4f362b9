"""Tuning of a FAISS index: the cheapest effort and list length that reach a recall, measured.

Fixed settings fit the model that they were chosen on. Here recall@k is measured against the scan, on contexts such as
those that will be asked, or at least on texts of the index itself. More effort and longer lists hardly ever find less,
so of all pairs only a staircase is measured: the longest lists with as little effort as they need, then ever shorter
ones with as much more. Of those that reach the recall the fastest stays, as the index's default (`FaissFile.tuned`).

A sample says only so much: what is measured has to be above the recall by a standard error, so that other contexts,
which had no part in the choice, mostly find as much. Most contexts find all of their best, and a few lose nearly all:
a sample that has met none of these few has a deviation of about 0 and proves little. So the error is that of contexts
that find all or nothing, were the recall just what was asked for, as in Wilson's score test of a proportion.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyencoder.checks import checked_count
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.faiss.file import Tuned
from polyencoder.index.faiss.search import LONGEST_LIST, FaissSearch
from polyencoder.index.options import TOP_K, SearchOptions
from polyencoder.scoring import ContextEncoding, search

__all__ = ["SAMPLE", "checked_recall", "sample", "tune"]

SAMPLE = 200
"""Contexts that are enough to measure recall with: an error of 0.007, where it is 0.99."""

T = TypeVar("T")

_SHORTEST_LIST = 64
_LEAST_EFFORT = {"hnsw": 16, "ivf-flat": 1, "ivf-pq": 1}


@torch.no_grad()
def tune(
    searcher: FaissSearch,
    contexts: Sequence[ContextEncoding],
    *,
    recall: float,
    top_k: int = TOP_K,
    allowed: Tensor | None = None,
    attention: str = "basic",
    source: str = "",
) -> Tuned:
    """Measure how a FAISS index finds `recall` of the `top_k` best, and say what it takes.

    Args:
        searcher: the index.
        contexts: a sample of those that will be asked for, in batches that are answered together.
        recall: how much of the best must be found, above 0 and at most 1.
        top_k: how many are the best.
        allowed: bool [rows], True for the rows that may be found, as in `FaissSearch.search`.
        attention: the model's.
        source: where the contexts are from, to be remembered.

    Returns:
        The settings, with what they found. Where nothing reaches the recall, those that found most.

    Raises:
        ConfigError: under multi-head attention, whose searches score everything, or for an impossible recall.
        InputError: there is no context, or no row.
    """
    recall, top_k = checked_recall(recall), checked_count("top_k", top_k)
    if attention == "multihead":
        raise ConfigError("under multi-head attention every search scores everything: there is no recall to reach")
    if not sum(part.batch_size for part in contexts):
        raise InputError("there is no context to measure recall with")
    measure = _Measure(searcher, contexts, top_k=top_k, allowed=allowed, attention=attention)
    efforts, lengths = _efforts(searcher), _lengths(searcher)
    best: tuple[float, Tuned] | None = None
    most: Tuned | None = None
    place = 0
    while lengths and place < len(efforts):
        effort, length = efforts[place], lengths[-1]
        found, seconds = measure(effort, length)
        one = Tuned(
            recall=recall,
            top_k=top_k,
            effort=effort,
            list_length=length,
            measured=round(float(found.mean()), 4),
            error=round((recall * (1 - recall) / len(found)) ** 0.5, 4),
            contexts=len(found),
            source=source,
            rows=len(searcher.vectors),
            vs_scan=round(measure.scan_seconds / seconds, 2),
        )
        if most is None or one.measured > most.measured:
            most = one
        if one.reached and (best is None or seconds < best[0]):
            best = seconds, one
        if one.reached or (best is not None and seconds > best[0] and place + 1 < len(efforts)):
            lengths.pop()  # so much effort may be enough for shorter lists; or more of it for these takes too long
        else:
            place += 1
    assert most is not None
    return most if best is None else best[1]


def checked_recall(recall: Any) -> float:
    """A recall, a number of Python's or numpy's. Raises ConfigError for anything else."""
    is_number = isinstance(recall, (int, float, np.floating)) and not isinstance(recall, bool)
    if not is_number or not 0 < recall <= 1:
        raise ConfigError(f"recall is {recall}; it must be above 0 and at most 1, such as 0.99", argument="recall")
    return float(recall)


def sample(items: Sequence[T], n: int) -> list[T]:
    """At most `n` of the items, the same each time, in their order."""
    chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:n]
    return [items[i] for i in chosen.sort().values.tolist()]


class _Measure:
    """Measures a search's recall for each context, and its time."""

    def __init__(
        self,
        searcher: FaissSearch,
        contexts: Sequence[ContextEncoding],
        *,
        top_k: int,
        allowed: Tensor | None,
        attention: str,
    ) -> None:
        available = len(searcher.vectors) if allowed is None else int(allowed.sum())
        if available == 0:
            raise InputError("there is no candidate to measure recall with")
        k = min(top_k, available)
        self._parts = [part for part in contexts if part.batch_size]
        # Not `search`, which scans few rows whatever the settings: more may come, and then these decide
        self._search = partial(searcher.search_lists, allowed=allowed, attention=attention)
        self._k = k
        start = time.perf_counter()
        found = [search(one, searcher.vectors, k=k, allowed=allowed, attention=attention) for one in self._parts]
        self.scan_seconds = time.perf_counter() - start
        # What has the score of the k-th best is as good; and two ways to multiply differ by rounding.
        last = torch.cat([scores for scores, _ in found])[:, -1:]
        self._least = last - 1e-5 * last.abs().clamp(min=1)

    def __call__(self, effort: int | None, list_length: int) -> tuple[Tensor, float]:
        """The share [contexts] of each one's best that is found, and the seconds that all took."""
        start = time.perf_counter()
        options = SearchOptions(top_k=self._k, effort=effort, list_length=list_length)
        found = [self._search(one, options).scores for one in self._parts]
        seconds = time.perf_counter() - start
        return (torch.cat(found) >= self._least).float().mean(dim=1), seconds


def _efforts(searcher: FaissSearch) -> list[int | None]:
    """From the least to all, each twice the one before."""
    least = _LEAST_EFFORT.get(searcher.meta.kind)
    if least is None:  # a flat index compares all
        return [None]
    most = searcher.most_effort
    efforts = [least << i for i in range(most.bit_length()) if least << i < most]
    return [*efforts, most]


def _lengths(searcher: FaissSearch) -> list[int]:
    """From the shortest lists to the longest, each twice the one before."""
    most = min(LONGEST_LIST, searcher.meta.rows)
    lengths = [_SHORTEST_LIST << i for i in range(most.bit_length()) if _SHORTEST_LIST << i < most]
    return [*lengths, most]
