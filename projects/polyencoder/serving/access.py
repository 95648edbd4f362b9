"""`Access`: refuses requests under a foreign name (DNS rebinding), of other sites' pages, and without the key."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyencoder.serving.config import LOOPBACK, ServerConfig
from polyencoder.serving.page import PATHS
from polyencoder.serving.problems import build_response

_PROBES = frozenset({"/health", "/ready"})
"""Paths for load balancers, which send no key and any Host."""
_OPEN = _PROBES | PATHS | {"/docs", "/openapi.json"}
"""Paths without the key: these pages ask their user for it."""


class Access:
    """ASGI middleware: answers 400 to a foreign Host, 403 to a foreign Origin, 401 to a wrong key.

    Any web page open in a browser on this machine can reach a server on the loopback, through a name that resolves to
    127.0.0.1. Starlette's `TrustedHostMiddleware` supports neither `[::1]:8000` nor Origin.
    """

    def __init__(self, app: ASGIApp, *, config: ServerConfig) -> None:
        self._app = app
        self._key = None if config.api_key is None else config.api_key.encode()
        self._origins, self._root_path = config.allow_origins, config.root_path
        self._hosts: tuple[str, ...] | None = None  # any: the key protects the server, and no names were given
        if config.local or config.allow_hosts:
            bound = () if config.host in ("0.0.0.0", "::") else (config.host,)
            self._hosts = tuple(name.lower() for name in (*LOOPBACK, *bound, *config.allow_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            scope["root_path"] = self._root_path  # which a proxy may remove, or leave
            refused = self._refuse(scope["path"].removeprefix(self._root_path) or "/", Headers(scope=scope))
        await (refused or self._app)(scope, receive, send)

    def _refuse(self, path: str, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        host = _parse_host(f"//{hosts[0]}") if len(hosts) == 1 else None
        if path not in _PROBES and (host is None or (self._hosts is not None and host not in self._hosts)):
            names = ", ".join(hosts) or "missing"
            return build_response(
                400, f"Host is {names:.100}, which is not a name of this server: allow_host adds names"
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and _parse_host(origin) not in (self._hosts or (host,)):
            return build_response(
                403, f"Origin is {origin:.100}: pages of other sites may not use this server: allow_origin adds sites"
            )
        if self._key is None or path in _OPEN:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        if hmac.compare_digest(key.strip().encode("latin-1"), self._key) and kind.lower() == "bearer":
            return None
        wrong = "the key is wrong or missing: Authorization: Bearer KEY"
        return build_response(401, wrong, headers={"WWW-Authenticate": "Bearer"})


def _parse_host(url: str) -> str | None:
    """The host of a URL, without its port; None if it has none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for an invalid port
        plain = parts.path in ("", "/") and not parts.query and parts.username is None
        return parts.hostname if plain else None
    except ValueError:
        return None
