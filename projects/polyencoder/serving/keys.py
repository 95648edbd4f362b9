"""The key that requests must show where there is one."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from polyencoder.serving.problems import problem

__all__ = ["OPEN", "Key"]

OPEN = frozenset({"/health", "/ready", "/", "/page/page.css", "/page/page.js"})
"""What is answered without a key: what balancers ask, and the page, which asks for the key."""
_ASKING = {"WWW-Authenticate": "Bearer"}


class Key:
    """Answers 401 to requests without `Authorization: Bearer KEY`. Keys are compared in constant time."""

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        kind, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode("latin-1"), self._key)
        if kind.lower() == "bearer" and right:
            return await self._app(scope, receive, send)
        answer = problem(401, "the key is wrong or missing: Authorization: Bearer KEY", headers=_ASKING)
        await answer(scope, receive, send)
