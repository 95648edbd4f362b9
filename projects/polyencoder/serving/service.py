"""`Service`: everything that a worker has loaded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Request

from polyencoder.calibration import AnswerOptions
from polyencoder.errors import PolyencoderError
from polyencoder.index.base import Index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker
from polyencoder.serving.config import ServerConfig, build_no_index_error
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import Forward, load
from polyencoder.serving.metrics import Metrics
from polyencoder.serving.writing import IndexWriter

T = TypeVar("T")


class SharedCall(Generic[T]):
    """A call that may hang, for example if Milvus is unreachable. Concurrent requests wait for the same result.

    It runs in a daemon thread: a hanging call would block a thread of a pool, and the process could not end.

    Args:
        seconds: the time limit; after it each request is an error until the call returns.
    """

    def __init__(self, call: Callable[[], T], *, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._result: Future[T] | None = None
        self._due = 0.0

    async def __call__(self) -> T:
        """The result. Raises PolyencoderError after the time limit, and the errors of the call."""
        if self._result is None or self._result.done():
            self._result = Future()
            self._result.set_running_or_notify_cancel()  # a request that stops waiting does not cancel it
            self._due = time.monotonic() + self._seconds
            threading.Thread(target=self._run, args=[self._result], name="polyencoder-index", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._result), self._due - time.monotonic())
        except asyncio.TimeoutError:
            late = f"the index has not answered within {self._seconds:g} seconds"
            raise PolyencoderError(late, public=late) from None

    def _run(self, result: Future[T]) -> None:
        try:
            value = self._call()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)


@dataclass(frozen=True)
class Service:
    """A ranker, an optional index and cross-encoder, and the settings of the server."""

    config: ServerConfig
    engine: Engine
    index: Index | None
    """None if the server only re-ranks."""
    reranker: Ranker | None
    """The cross-encoder that re-ranks the first results of a search."""
    writer: IndexWriter
    check_index: SharedCall[None]
    """Checks that the index, if any, can be searched."""
    count: SharedCall[int | None]
    """The number of candidates; None without an index."""
    metrics: Metrics

    @classmethod
    def load(cls, config: ServerConfig) -> Service:
        """Loads the models and opens the index. Raises what `forward.load` and `from_config` raise."""
        forward, index, reranker = load(config)
        return cls.from_config(config, forward, index=index, reranker=reranker)

    @classmethod
    def from_config(
        cls, config: ServerConfig, forward: Forward, *, index: Index | None = None, reranker: Ranker | None = None
    ) -> Service:
        """Creates a service of models and an index. PolyencoderError if the settings of searches do not fit them."""
        metrics, seconds = Metrics(), config.limits.ready_seconds
        service = cls(
            config=config,
            engine=Engine(forward, limits=config.limits, metrics=metrics),
            index=index,
            reranker=reranker,
            writer=IndexWriter(index),
            check_index=SharedCall(lambda: None if index is None else index.check_searchable(), seconds=seconds),
            count=SharedCall(lambda: None if index is None else len(index), seconds=seconds),
            metrics=metrics,
        )
        if index is not None and len(index):
            service.build_searcher(
                replace(SearchOptions(), **vars(config.answers))
            )  # raises for settings that do not fit
        return service

    @property
    def name(self) -> str:
        """The model's name in answers: the last part of its path, since paths are private."""
        return Path(self.config.model).name or "model"

    @property
    def search_calibrated(self) -> bool:
        """Whether results of searches have probabilities: they are the cross-encoder's, if it reranks."""
        return (self.reranker or self.engine.ranker).calibration is not None

    @property
    def chat_answers(self) -> AnswerOptions:
        """Which answers the chat gives: the server's setting, else the first promise of the calibration, if any."""
        if self.index is None:
            return self.config.answers
        calibration = (self.reranker or self.engine.ranker).calibration
        return self.config.answers.or_promised(calibration, index=self.index.address)

    def build_searcher(self, options: SearchOptions, *, keep_turns: bool = False) -> Searcher:
        """A searcher of the index's newest state. An error without an index, or for an option that does not fit it."""
        if self.index is None:
            raise build_no_index_error("search")
        reranks = self.reranker is not None or not options.words_only  # by words alone no model reranks its own
        return Searcher(
            self.engine.ranker,
            self.index,
            options,
            reranker=self.reranker,
            rerank_k=self.config.rerank_k if reranks else None,
            keep_turns=keep_turns,
        )

    def close(self) -> None:
        """Finishes the accepted requests, then closes the index."""
        self.writer.close()
        self.engine.close()
        if self.index is not None:
            self.index.close()


def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_get_service)]
"""The worker's service, as an argument of a route."""
