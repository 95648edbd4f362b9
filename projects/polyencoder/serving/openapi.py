"""The routes of the server and their OpenAPI description, with an example request and answer of each.

The examples are those of all-MiniLM-L6-v2 without training or calibration, an index of three candidates, and a file of
feedback. Numbers are rounded, and of each vector only three are kept.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from polyencoder.serving import candidates, chat, embeddings, feedback, health, page, rerank, search, select

_JSON = "application/json"


def described(app: FastAPI) -> FastAPI:
    """Adds all routes to an application, whose description, at `/openapi.json` and `/docs`, has the examples."""
    for one in (rerank, select, embeddings, search, chat, candidates, feedback, health, page):
        app.include_router(one.router)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _add_examples(app.openapi_schema)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation has it
    return app


def examples() -> dict[str, dict[str, Any]]:
    """`request`, if the route has a body, and `answer`, by method and path: `post /v1/rerank`."""
    text = (files("polyencoder.serving") / "openapi_examples.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def _add_examples(description: dict[str, Any]) -> None:
    known = examples()
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            example = known.get(f"{method} {path}", known.get(f"{method} /v1{path}", {}))
            if "request" in example:
                operation["requestBody"]["content"][_JSON]["example"] = example["request"]
            if "answer" in example:
                operation["responses"]["200"]["content"][_JSON]["example"] = example["answer"]
