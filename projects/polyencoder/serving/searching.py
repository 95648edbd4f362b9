"""Searches the index for concurrent requests: `/v1/search` and `/v1/chat`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from polyencoder.calibration import LeastProbability
from polyencoder.errors import InputError
from polyencoder.index.base import Hit, Index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.ranker.ranker import Ranker
from polyencoder.scoring.context import stacked
from polyencoder.serving.batch_forward import context
from polyencoder.serving.config import no_index
from polyencoder.serving.engine import Engine
from polyencoder.serving.model_thread import Job

__all__ = ["Found", "Search"]


class Found(NamedTuple):
    """The result of a search."""

    hits: list[Hit]
    tokens: int
    milliseconds: dict[str, float]
    """Of each step: `tokenize`, `queue`, `encode`, and `search`, which re-ranks as well."""


class Search:
    """An index, with what every search of it has in common.

    Args:
        engine: encodes the contexts.
        index: None where the server has none; asking it is then an error.
        reranker: a cross-encoder that orders the first `rerank_k`.
        min_probability: of those who say none.
    """

    def __init__(
        self,
        engine: Engine,
        index: Index | None,
        *,
        reranker: Ranker | None = None,
        rerank_k: int = 50,
        min_probability: LeastProbability | None = None,
    ) -> None:
        self.index = index
        self._engine = engine
        self._reranker = reranker
        self._rerank_k = rerank_k
        self._min_probability = min_probability

    async def __call__(
        self,
        turns: Sequence[str],
        options: SearchOptions,
        *,
        min_probability: LeastProbability | None = None,
        keep_turns: bool = False,
        name: str = "query",
    ) -> Found:
        """The best candidates for a context. Searches with equal settings that came together are made together.

        Raises:
            InputError, ConfigError: an option does not fit the index or the limits; there is no index.
        """
        start = time.perf_counter()
        engine = self._engine
        if options.top_k is not None and options.top_k > engine.limits.top_k:
            raise InputError(f"top_k is {options.top_k}; it must be at most {engine.limits.top_k}", argument="top_k")
        turns = engine.turns(turns, name=name)
        least = self._min_probability if min_probability is None else min_probability
        settings = (options, least, keep_turns)

        remote = self.index is not None and self.index.remote
        if self.index is not None and not remote and await engine.tokenized(self.index.__len__) == 0:
            return Found([], 0, {})

        def tokenized() -> list[int]:
            if not remote:  # which is asked once, on a thread that may wait for it
                self.searcher(*settings)  # what does not fit is this request's own error
            return engine.ranker.text.context_ids(turns)

        item = context(await engine.tokenized(tokenized))
        prepared = time.perf_counter()
        find = partial(self._find, settings)
        job = Job([item], find, group_key=repr(settings), payload=turns, blocking_io=remote)
        hits = await engine.run(job)
        seconds = {"tokenize": prepared - start, **job.seconds}
        seconds["search"] = seconds.pop("score")
        return Found(hits, item.cost, {step: round(1000 * value, 3) for step, value in seconds.items()})

    def searcher(self, options: SearchOptions, least: LeastProbability | None, keep_turns: bool) -> Searcher:
        """What searches the newest state of the index; errors as of a search."""
        if self.index is None:
            raise no_index("search")
        return Searcher(
            self._engine.ranker,
            self.index,
            options,
            reranker=self._reranker,
            rerank_k=self._rerank_k,
            min_probability=least,
            keep_turns=keep_turns,
        )

    def _find(
        self, settings: tuple[SearchOptions, LeastProbability | None, bool], jobs: Sequence[Job]
    ) -> list[list[Hit]]:
        if self.index is None or len(self.index) == 0:  # all were removed since it was asked
            return [[] for _ in jobs]
        encoded = stacked([job.results[0] for job in jobs])
        with torch.inference_mode():
            return self.searcher(*settings).find(encoded, [job.payload for job in jobs])
