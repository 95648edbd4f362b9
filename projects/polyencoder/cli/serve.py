"""`polyencoder serve`: rerank, search and chat over HTTP."""

from __future__ import annotations

import os
from typing import Annotated, cast

import typer

from polyencoder.checkpoint import WeightDtype
from polyencoder.cli.options import BackendName, Device, MinProbability, Model, ModelDtype
from polyencoder.extras import require
from polyencoder.ranker import Backend

__all__ = ["serve"]

_KEY = "POLYENCODER_API_KEY"


def serve(
    model: Model,
    index: Annotated[
        str | None,
        typer.Option(
            "--index", "-i", help="What is searched: its folder, or milvus: and an address; none to re-rank alone."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; one that other machines reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for one that is free.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help=f"What requests must show as `Authorization: Bearer KEY`; better in {_KEY}, which ps hides."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients call this server; repeat it. By default those of the loopback."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that answer, each with the model; they map one index.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Of each worker's model; by default what torch takes, shared out.")
    ] = None,
    rerank: Annotated[str | None, typer.Option(help="A cross-encoder, to order the first results.")] = None,
    rerank_k: Annotated[int, typer.Option(help="How many results the cross-encoder orders.")] = 50,
    min_probability: MinProbability = None,
    no_answer: Annotated[
        str, typer.Option(help="What the chat says where nothing is likely enough.")
    ] = "I have no good answer to that.",
    sessions: Annotated[
        str | None,
        typer.Option(help="A SQLite file for the sessions of the chat; by default they end with the server."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="Sessions that are kept.")] = 10_000,
    session_seconds: Annotated[float, typer.Option(help="For how long one is kept that nobody speaks in.")] = 86400.0,
    feedback: Annotated[
        str | None, typer.Option(help="A file of JSON lines for the page's thumbs, which polyencoder train reads.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(help="Tokens that go through the model together; a longer text goes alone.")
    ] = 4096,
    max_concurrent: Annotated[
        int, typer.Option(help="Requests under way in each worker; one more is answered 429.")
    ] = 256,
    max_bytes: Annotated[int, typer.Option(help="Of a request; more is answered 413.")] = 8 << 20,
    max_documents: Annotated[int, typer.Option(help="Texts of a request; more is answered 422.")] = 1000,
    max_characters: Annotated[int, typer.Option(help="Of one text; more is answered 422.")] = 100_000,
    max_tokens: Annotated[int, typer.Option(help="Of a request; more is answered 422.")] = 1 << 17,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up, and answered 504.")] = 30.0,
    drain_seconds: Annotated[
        float, typer.Option(help="For what is under way when the server is told to end (SIGTERM).")
    ] = 30.0,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Answer over HTTP: rerank, embeddings, search and chat. `/docs` says how to ask."""
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
        api_key=api_key or os.environ.get(_KEY) or None,
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
