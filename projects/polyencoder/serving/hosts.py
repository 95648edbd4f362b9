"""Whom a request says that it asks, and from which page.

A server on the loopback is reached by whatever site a browser there shows, under a name of that site (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from polyencoder.serving.config import LOOPBACK, ServerConfig
from polyencoder.serving.problems import problem

__all__ = ["Hosts", "allowed_hosts"]


def allowed_hosts(config: ServerConfig) -> tuple[str, ...] | None:
    """The names by which a server may be called; None for any, where a key keeps strangers out and none were given."""
    if not config.local and not config.allow_hosts:
        return None
    own = () if config.host in ("0.0.0.0", "::") else (config.host,)
    return tuple(name.lower() for name in (*LOOPBACK, *own, *config.allow_hosts))


class Hosts:
    """Answers 400 to a Host that is not ours, and 403 to a page of another origin.

    Args:
        hosts: names without ports; None for any. An Origin must have one of them, or the Host of the request.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        named = [value for key, value in headers.items() if key == "host"]
        host = _name(f"//{named[0]}") if len(named) == 1 else None
        if host is None or (self._hosts is not None and host not in self._hosts):
            shown = f"{', '.join(named) or 'none'}"
            answer = problem(400, f"Host is {shown:.100}, by which this server is not called; allow_hosts adds names")
            return await answer(scope, receive, send)
        origin = headers.get("origin")
        if origin is not None and _name(origin) not in (self._hosts or (host,)):
            answer = problem(403, f"Origin is {origin:.100}: pages of other sites may not use this server")
            return await answer(scope, receive, send)
        await self._app(scope, receive, send)


def _name(url: str) -> str | None:
    """The host of a URL, without its port; None if it has none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - complains of one that is none
        plain = parts.path in ("", "/") and not parts.query and parts.username is None
        return parts.hostname if plain else None
    except ValueError:
        return None
