"""`Forward`: batches of a server's contexts, candidates or pairs through a ranker's encoder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyencoder.calibration import CalibratedRanker
from polyencoder.index.base import Index
from polyencoder.index.open import open_index
from polyencoder.index.rerank import RERANK_K, check_reranker
from polyencoder.packages import is_installed
from polyencoder.ranker import Ranker
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.model_thread import WorkItem

CONTEXT, CANDIDATE, PAIR = "context", "candidate", "pair"

Ids = Sequence[int]


def build_context_item(ids: Ids) -> WorkItem:
    """An item whose result is `Contexts` of one context."""
    return WorkItem(CONTEXT, ids, len(ids))


def build_candidate_item(ids: Ids) -> WorkItem:
    """An item whose result is `TokenVectors`."""
    return WorkItem(CANDIDATE, ids, len(ids))


def build_pair_item(context: Ids, candidate: Ids) -> WorkItem:
    """An item whose result is a score, by a model that reads pairs."""
    return WorkItem(PAIR, (context, candidate), len(context) + len(candidate))


class Forward:
    """Computes items of one kind, sorted by length, at most `max_tokens` tokens at once, padding included.

    The result of an item does not depend on the others: in float32 up to the rounding of another order of sums.
    """

    def __init__(self, ranker: CalibratedRanker, *, max_tokens: int = ServerConfig.batch_tokens) -> None:
        self.ranker = ranker
        self.max_tokens = max_tokens
        self._threads = _count_torch_threads()

    def prepare_thread(self) -> None:
        """Called first on each thread that calls the other methods."""
        _set_torch_threads(self._threads)  # a setting of each thread

    def __call__(self, kind: str, tokens: Sequence[Any]) -> list[Any]:
        """The result of each item."""
        encoder = self.ranker.encoder
        if kind == PAIR:
            return self._score_pairs(tokens)
        if kind == CANDIDATE:
            return [*encoder.cache_candidates(tokens, max_tokens=self.max_tokens)]
        encoded = encoder.encode_contexts(tokens, max_tokens=self.max_tokens)
        return [encoded.select([row]) for row in range(len(tokens))]

    def _score_pairs(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[float]:
        """Scores pairs; each distinct context, and each distinct candidate, is read once."""
        contexts: dict[tuple[int, ...], list[int]] = {}
        columns: dict[tuple[int, ...], int] = {}
        for position, (ids, _) in enumerate(pairs):
            contexts.setdefault(tuple(ids), []).append(position)
        index = np.full((len(contexts), max(map(len, contexts.values()))), -1)
        for row, positions in enumerate(contexts.values()):
            index[row, : len(positions)] = [
                columns.setdefault(tuple(pairs[position][1]), len(columns)) for position in positions
            ]
        scores = self.ranker.encoder.score_ids([*contexts], [*columns], index, max_tokens=self.max_tokens)
        results = np.empty(len(pairs), dtype=np.float32)
        for row, positions in enumerate(contexts.values()):
            results[positions] = scores[row, : len(positions)]
        return results.tolist()


def load(config: ServerConfig) -> tuple[Forward, Index | None, Ranker | None]:
    """Loads the ranker, the index and the cross-encoder that reranks. PolyencoderError if one does not fit."""
    if config.index is not None:
        open_index(config.index).close()  # an index that is missing is an error before a model is loaded
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = config.threads or max(1, (_count_torch_threads() or cores) // config.workers)
    _set_torch_threads(threads)
    settings: dict[str, Any] = {"device": config.device, "dtype": config.model_dtype, "threads": threads}
    ranker = Ranker.from_pretrained(config.model, backend=config.backend, **settings)
    reranker = None
    if config.rerank is not None:
        backend = "torch" if is_installed("torch") else config.backend
        reranker = Ranker.from_pretrained(config.rerank, backend=backend, **settings)
        check_reranker(reranker, k=config.rerank_k or RERANK_K)
    index = open_index(config.index, ranker) if config.index else None
    return Forward(ranker, max_tokens=config.batch_tokens), index, reranker


def _count_torch_threads() -> int | None:
    """The number of torch's threads; None without torch."""
    if not is_installed("torch"):
        return None
    import torch

    return torch.get_num_threads()


def _set_torch_threads(threads: int | None) -> None:
    if threads is not None and is_installed("torch"):
        import torch

        torch.set_num_threads(threads)
