"""`/`: a self-contained web page to try the server."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, HTTPException, Response

__all__ = ["PATHS", "router"]

router = APIRouter(include_in_schema=False)

_PAGE = files("polyencoder.serving.page")
_SCRIPTS = ("page.js", "server.js", "results.js", "candidates.js")
_KINDS = {"index.html": "text/html", "page.css": "text/css", **dict.fromkeys(_SCRIPTS, "text/javascript")}
PATHS = frozenset({"/", *(f"/page/{name}" for name in _KINDS)})
"""The paths of the page and its parts."""
_HEADERS = {
    # Only our own scripts and styles: markup in a text can neither run nor load anything.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def page() -> Response:
    """The page."""
    return await part("index.html")


@router.get("/page/{name}")
async def part(name: str) -> Response:
    """A file of the page."""
    if name not in _KINDS:
        raise HTTPException(404, "no such part of the page")
    content = (_PAGE / name).read_bytes()
    return Response(content, media_type=f"{_KINDS[name]}; charset=utf-8", headers=_HEADERS)
