"""The application: routes, and what stands before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI

from polyencoder.serving.admission import Admission, Counted
from polyencoder.serving.exchange import Exchange
from polyencoder.serving.hosts import Hosts, allowed_hosts
from polyencoder.serving.keys import Key
from polyencoder.serving.problems import handle_problems
from polyencoder.serving.routes import candidates, chat, embeddings, feedback, health, page, rerank, search
from polyencoder.serving.service import Service

__all__ = ["create_app"]


def create_app(service: Service) -> FastAPI:
    """The application of a worker. It warms the service before it takes requests, and closes it in the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.warm()
        yield
        await anyio.to_thread.run_sync(service.close)

    app = FastAPI(title="polyencoder", lifespan=lifespan, redoc_url=None)
    app.state.service = service
    for one in (rerank, embeddings, search, chat, candidates, feedback, health, page):
        app.include_router(one.router)
    handle_problems(app)
    limits, metrics = service.config.limits, service.metrics
    # The last that is added comes first.
    app.add_middleware(Exchange, limits=limits)
    app.add_middleware(Admission, most=limits.concurrent, metrics=metrics)
    if service.config.api_key is not None:
        app.add_middleware(Key, key=service.config.api_key)
    app.add_middleware(Hosts, hosts=allowed_hosts(service.config))
    app.add_middleware(Counted, metrics=metrics)
    return app
