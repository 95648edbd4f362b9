"""The ASGI application of a worker: the routes, behind checks of access and limits, with every answer counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from polyencoder.errors import InputError
from polyencoder.index.options import SearchOptions
from polyencoder.serving import candidates, embeddings, feedback, health, page, rerank, search, select
from polyencoder.serving.access import Access
from polyencoder.serving.metrics import CountingMiddleware
from polyencoder.serving.problems import Problem, handle_problems
from polyencoder.serving.request_limits import RequestLimits
from polyencoder.serving.service import Service

_ROUTES = (rerank, select, embeddings, search, candidates, feedback, health, page)
_WARM = ["hello", "a text that is longer than the one before it, as texts are of many lengths ." * 4]


def create_app(service: Service) -> ASGIApp:
    """Builds a worker's application, which warms the service up before it accepts requests, and closes it at the end.

    A request passes `CountingMiddleware`, which counts answers to bugs too, then CORS, `Access`, `RequestLimits` and
    its route.

    Raises:
        ConfigError: the file of feedback cannot be written.
    """

    mcp = None
    if service.config.mcp == "http":
        from polyencoder.serving.mcp import create_mcp_manager  # of an extra

        mcp = create_mcp_manager(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await _warm(service)
        async with nullcontext() if mcp is None else mcp.run():
            yield
        await anyio.to_thread.run_sync(service.close)

    errors: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": Problem, "description": "The request is wrong."},
        "5XX": {"model": Problem, "description": "The server cannot answer now."},
    }
    key = [] if service.config.api_key is None else [Depends(HTTPBearer(auto_error=False))]  # tells /docs
    app = FastAPI(title="polyencoder", lifespan=lifespan, redoc_url=None, responses=errors, dependencies=key)
    add_routes(app)
    app.state.service = service
    file = service.config.feedback
    app.state.feedback = None if file is None else feedback.Feedback(Path(file))
    if mcp is not None:
        # only POST: without sessions a server has nothing to say of its own, and an open GET would delay its end
        app.router.routes.append(Route("/mcp", endpoint=mcp.asgi_app, methods=["POST"]))
    handle_problems(app)
    app.add_middleware(RequestLimits, limits=service.config.limits, metrics=service.metrics)
    app.add_middleware(Access, config=service.config)
    allowed: ASGIApp = app
    if service.config.allow_origins:  # around the handler of bugs, too, or pages could not read its answer
        allowed = CORSMiddleware(
            app,
            allow_origins=service.config.allow_origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=["*"],  # OpenAI's client sends a dozen of its own
            expose_headers=["Retry-After"],
        )
    return CountingMiddleware(allowed, metrics=service.metrics)


def add_routes(app: FastAPI) -> FastAPI:
    """Adds all routes except MCP's to an application, which describes them at `/openapi.json` and `/docs`."""
    for module in _ROUTES:
        app.include_router(module.router)
    return app


async def _warm(service: Service) -> None:
    """Ranks, embeds and searches a few texts, so that no request is slowed by one-time costs."""
    engine, index = service.engine, service.index
    for _ in range(2):
        with suppress(InputError):  # limits smaller than these texts
            await rerank.rank(engine, _WARM[:1], _WARM)
        with suppress(InputError):  # or a model without embeddings
            await embeddings.embed(engine, _WARM, is_query=True)
        if index is not None and len(index):
            with suppress(InputError):
                await search.find_hits(service, _WARM[:1], SearchOptions())
