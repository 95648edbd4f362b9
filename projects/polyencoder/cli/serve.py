"""`polyencoder serve`: serves reranking, search and chat over HTTP, and tools over MCP."""

from __future__ import annotations

from polyencoder.cli.shared.output import say
from polyencoder.packages import require
from polyencoder.serving.config import ServerConfig


def serve(*, config: ServerConfig) -> None:
    """Serve reranking, selection, embeddings, search and chat over HTTP, and MCP. `/docs` describes the requests."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, extra="serve")
    if config.mcp is not None:
        require("mcp", extra="mcp")
    from polyencoder.serving.run import serve as run

    run(config, listening=lambda url: say(f"polyencoder: serving {config.model} on {url}", err=True))
