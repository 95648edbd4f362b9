"""The application of a worker: the routes, behind checks of access and limits, with every answer counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp

from polyencoder.serving.access import Access
from polyencoder.serving.metrics import Counted
from polyencoder.serving.problems import handle_problems
from polyencoder.serving.request_limits import RequestLimits
from polyencoder.serving.routes import candidates, chat, embeddings, feedback, health, page, rerank, search
from polyencoder.serving.service import Service

__all__ = ["create_app"]


def create_app(service: Service) -> ASGIApp:
    """The application of a worker. It warms the service before it takes requests, and closes it in the end.

    A request passes `Counted`, which sees the answers of bugs, too, then `Access`, `RequestLimits` and its route.
    """

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
    app.add_middleware(RequestLimits, limits=service.config.limits, metrics=service.metrics)
    app.add_middleware(Access, config=service.config)  # the last that is added comes first
    return Counted(app, metrics=service.metrics)
