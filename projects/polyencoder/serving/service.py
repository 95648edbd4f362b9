"""`Service`: everything that a worker has loaded."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.open import open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.rerank import check_reranker
from polyencoder.ranker.ranker import Ranker
from polyencoder.serving import embedding, reranking
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.engine import Engine
from polyencoder.serving.feedback import Feedback
from polyencoder.serving.metrics import Metrics
from polyencoder.serving.readiness import Readiness
from polyencoder.serving.searching import Search
from polyencoder.serving.sessions import Sessions
from polyencoder.serving.writing import Writer
from polyencoder.storage.temporary import TemporaryFolder

__all__ = ["Service"]

_WARM = ["hello", "a text that is longer than the one before it, as texts are of many lengths ." * 4]


@dataclass(frozen=True)
class Service:
    """A ranker, perhaps with an index, and how it is served."""

    config: ServerConfig
    engine: Engine
    search: Search
    writer: Writer
    sessions: Sessions | None
    """None without an index, of which a chat needs replies."""
    feedback: Feedback | None
    metrics: Metrics
    readiness: Readiness

    @classmethod
    def load(cls, config: ServerConfig) -> Service:
        """Load the model and open the index.

        Raises:
            PolyencoderError: a model or the index is missing, damaged, or not made for the others.
        """
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        ranker = Ranker.from_pretrained(
            config.model, device=config.device, backend=config.backend, dtype=config.model_dtype
        )
        reranker = None
        if config.rerank is not None:
            reranker = Ranker.from_pretrained(config.rerank, device=config.device, dtype=config.model_dtype)
            check_reranker(reranker, k=config.rerank_k)
        index = None if config.index is None else open_index(config.index, ranker)
        return cls.of(config, ranker, index=index, reranker=reranker)

    @classmethod
    def of(
        cls, config: ServerConfig, ranker: Ranker, *, index: Index | None = None, reranker: Ranker | None = None
    ) -> Service:
        """A service of what is loaded already.

        Raises:
            PolyencoderError: what the configuration says of searches does not fit the models or the index.
        """
        metrics = Metrics()
        engine = Engine(ranker, limits=config.limits, batch_tokens=config.batch_tokens, metrics=metrics)
        search = Search(
            engine, index, reranker=reranker, rerank_k=config.rerank_k, min_probability=config.min_probability
        )
        sessions = None
        if index is not None:
            temporary = None if config.sessions else TemporaryFolder()
            sessions = Sessions(
                Path(config.sessions or "") if temporary is None else Path(temporary.name) / "sessions.sqlite",
                most=config.max_sessions,
                seconds=config.session_seconds,
                most_characters=config.limits.characters,
            )
            if temporary is not None:
                weakref.finalize(sessions, temporary.cleanup)
        if index is not None and len(index):
            search.searcher(SearchOptions(), config.min_probability, False)  # complains of what does not fit
        feedback = None if config.feedback is None else Feedback(Path(config.feedback))
        readiness = Readiness(index, seconds=config.limits.ready_seconds)
        return cls(config, engine, search, Writer(engine, index), sessions, feedback, metrics, readiness)

    async def warm(self) -> None:
        """Rank, embed and search a few texts, so that no request pays for what the first one costs."""
        for _ in range(2):
            for way in (self._rank_some, self._embed_some, self._search_some):
                with suppress(InputError):  # of limits that are smaller than these texts
                    await way()

    async def _rank_some(self) -> None:
        await reranking.rank(self.engine, _WARM[:1], _WARM)

    async def _embed_some(self) -> None:
        if embedding.gives_embeddings(self.engine.ranker):
            await embedding.embed(self.engine, _WARM, input_type="query")

    async def _search_some(self) -> None:
        if self.search.index is not None and len(self.search.index):
            await self.search(_WARM[:1], SearchOptions())

    def close(self) -> None:
        """Finish what was asked for, then let go of the index."""
        self.writer.close()
        self.engine.close()
        if self.search.index is not None:
            self.search.index.close()
