"""`polyencoder serve`: rerank, search and chat over HTTP."""

from __future__ import annotations

import os
from typing import Annotated, cast

import typer

from polyencoder.cli.flags import check_flags
from polyencoder.cli.options import BackendName, Device, MinProbability, Model, ModelDtype
from polyencoder.packages import require
from polyencoder.ranker.ranker import Backend
from polyencoder.storage.checkpoint import WeightDtype

__all__ = ["serve"]

_KEY = "POLYENCODER_API_KEY"
_OF_AN_INDEX = ("rerank", "min_probability", "no_answer", "sessions", "max_sessions", "session_seconds")


def serve(
    ctx: typer.Context,
    model: Model,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            "-i",
            help="The index to search: a folder, or milvus: and an address (default: none).",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help=f"The key in requests' `Authorization: Bearer KEY`; better set {_KEY}, which ps hides."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name that clients may use for this server; repeatable (default: the loopback's)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker processes, each with its own model; they share one index.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each worker's model (default: torch's, divided among the workers).")
    ] = None,
    rerank: Annotated[str | None, typer.Option(help="A cross-encoder to rerank the first results.")] = None,
    rerank_k: Annotated[int, typer.Option(help="How many results the cross-encoder reranks.")] = 50,
    min_probability: MinProbability = None,
    no_answer: Annotated[
        str | None,
        typer.Option(
            help='What the chat replies if nothing is likely enough (default: "I have no good answer to that.").'
        ),
    ] = None,
    sessions: Annotated[
        str | None,
        typer.Option(help="SQLite file for the chat's sessions (default: a temporary one)."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="How many sessions are kept.")] = 10_000,
    session_seconds: Annotated[float, typer.Option(help="Seconds after which an unused session is dropped.")] = 86400.0,
    feedback: Annotated[
        str | None, typer.Option(help="JSON lines file for ratings given on the page; polyencoder train reads it.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(help="Maximum tokens of a batch through the model; a longer text goes alone.")
    ] = 4096,
    max_concurrent: Annotated[
        int, typer.Option(help="Maximum concurrent requests per worker; more are answered 429.")
    ] = 256,
    max_bytes: Annotated[int, typer.Option(help="Maximum bytes of a request; more are answered 413.")] = 8 << 20,
    max_documents: Annotated[int, typer.Option(help="Maximum texts of a request; more are answered 422.")] = 1000,
    max_characters: Annotated[int, typer.Option(help="Maximum characters of a text; more are answered 422.")] = 100_000,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of a request; more are answered 422.")] = 1 << 17,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up and answered 504.")] = 30.0,
    drain_seconds: Annotated[float, typer.Option(help="Seconds to finish open requests after SIGTERM.")] = 30.0,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Serve reranking, embeddings, search and chat over HTTP. `/docs` describes the requests."""
    check_flags(ctx, needs={"index": _OF_AN_INDEX, "rerank": ["rerank_k"]})
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, extra="serve")
    from polyencoder.serving.config import Limits, ServerConfig
    from polyencoder.serving.run import serve as run

    config = ServerConfig(
        model=model,
        index=index,
        rerank=rerank,
        rerank_k=rerank_k,
        min_probability=min_probability,
        no_answer=no_answer,
        host=host,
        port=port,
        api_key=api_key or os.environ.get(_KEY, "").strip() or None,
        allow_hosts=tuple(allow_host or ()),
        workers=workers,
        threads=threads,
        device=device,
        model_dtype=cast("WeightDtype", model_dtype),  # which is checked there, as is the backend
        backend=cast("Backend", backend),
        batch_tokens=batch_tokens,
        sessions=sessions,
        max_sessions=max_sessions,
        session_seconds=session_seconds,
        feedback=feedback,
        limits=Limits(
            concurrent=max_concurrent,
            bytes=max_bytes,
            documents=max_documents,
            characters=max_characters,
            tokens=max_tokens,
            seconds=timeout,
            drain_seconds=drain_seconds,
        ),
    )
    run(config, listening=lambda url: typer.echo(f"polyencoder: serving {model} on {url}", err=True))
