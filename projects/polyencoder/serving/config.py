"""Settings of a server: model and index, address, limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from polyencoder.calibration import LeastProbability
from polyencoder.checks import check_fields, check_place
from polyencoder.errors import ConfigError
from polyencoder.ranker.ranker import Backend
from polyencoder.storage.checkpoint import WeightDtype

__all__ = ["LOOPBACK", "Limits", "ServerConfig", "no_index"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one worker. All are whole numbers of at least 1 or seconds above 0; else ConfigError."""

    concurrent: int = 256
    """Maximum concurrent requests per worker; more are answered 429, with the seconds to wait in Retry-After."""
    connections: int = 1024
    """Maximum open connections; a request on another one is answered 503."""
    bytes: int = 8 << 20
    """Maximum bytes of a request; more are answered 413."""
    documents: int = 1000
    """Maximum texts of a request; more are answered 422."""
    characters: int = 100_000
    """Maximum characters of a text; more are answered 422."""
    tokens: int = 1 << 17
    """Maximum tokens of a request, after texts were truncated for the model; more are answered 422."""
    top_k: int = 1000
    """Maximum results of a search; more are answered 422."""
    queued_tokens: int = 1 << 19
    """Maximum tokens that wait for the model; with more, `/ready` is 503."""
    ready_seconds: float = 5.0
    """Seconds for the index to answer; after that, `/ready` is 503."""
    seconds: float = 30.0
    """Seconds after which a request is given up and answered 504."""
    read_seconds: float = 10.0
    """Seconds for the body of a request; a slower one is answered 408. Slow headers are left to a proxy."""
    drain_seconds: float = 30.0
    """Seconds to finish open requests after SIGTERM."""

    def __post_init__(self) -> None:
        check_fields(self)
        for one in fields(self):
            if not (value := getattr(self, one.name)) > 0:
                raise ConfigError(f"{one.name} is {value}; it must be above 0", argument=one.name)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of `polyencoder serve`.

    Raises:
        ConfigError: the settings contradict each other; an address that others reach, but no key.
    """

    model: str
    """The ranker: a model folder, a model file or a hub id."""
    index: str | None = None
    """The index to search: a folder, or milvus: and an address; None for a server that only re-ranks."""
    rerank: str | None = None
    """A cross-encoder to rerank the first results."""
    rerank_k: int = 50
    """The number of results that the cross-encoder reranks."""
    min_probability: LeastProbability | None = None
    """Leave out less probable results; a request may give another minimum."""
    no_answer: str | None = None
    """The chat's reply if nothing is likely enough; None for "I have no good answer to that."."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a key."""
    port: int = 8000
    """Port to listen on; 0 for a free one."""
    api_key: str | None = field(default=None, repr=False)
    """The key in requests' `Authorization: Bearer KEY`."""
    allow_hosts: tuple[str, ...] = ()
    """Host names, without ports, that clients may use for this server, besides the loopback's."""
    workers: int = 1
    """Worker processes, each with its own model; they share one index."""
    threads: int | None = None
    """Threads of each worker's model; None for torch's, divided among the workers."""
    device: str | None = None
    """The device of the models; None for a GPU if there is one, else the CPU."""
    model_dtype: WeightDtype = "float32"
    """The type of the weights."""
    backend: Backend = "torch"
    """How the model is computed."""
    batch_tokens: int = 4096
    """Maximum tokens of a batch through the model; a longer text goes alone."""
    sessions: str | None = None
    """SQLite file for the chat's sessions; None for a temporary one."""
    max_sessions: int = 10_000
    """The number of sessions that are kept."""
    session_seconds: float = 24 * 3600.0
    """Seconds after which an unused session is dropped."""
    feedback: str | None = None
    """JSON lines file for ratings given on the page; None for a page without ratings."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("workers", "batch_tokens", "max_sessions", "rerank_k", "threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1", argument=name)
        for name in ("sessions", "feedback"):
            if (value := getattr(self, name)) is not None:
                check_place(name, value)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; it must be 0 to 65535", argument="port")
        if not self.session_seconds > 0:
            raise ConfigError(
                f"session_seconds is {self.session_seconds}; it must be above 0", argument="session_seconds"
            )
        if self.api_key is not None and not re.fullmatch(r"[!-~]{8,}", self.api_key):
            raise ConfigError(
                "the key must be at least 8 visible ASCII characters, without spaces and line ends", argument="api_key"
            )
        for name in self.allow_hosts:
            if not name or "/" in name or "[" in name or name.count(":") == 1:
                raise ConfigError(
                    f"allow_hosts has {name!r:.100}; give names alone, without http:// and port", argument="allow_hosts"
                )
        if self.api_key is None and not self.local:
            raise ConfigError(
                f"host is {self.host}, which other machines reach, and there is no key: give one, best in the "
                "environment as POLYENCODER_API_KEY, or listen on 127.0.0.1",
                argument="host",
            )
        for name in ("rerank", "min_probability", "no_answer", "sessions"):
            if getattr(self, name) is not None and self.index is None:
                raise ConfigError(f"{name} is for searches and the chat, which need an index: give one", argument=name)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK


def no_index(purpose: str) -> ConfigError:
    """The error of a request that needs an index, in a server that has none."""
    return ConfigError(
        f"this server has no index to {purpose}: make one with `polyencoder index --model MODEL --candidates FILE "
        "--out INDEX`, and start the server with `polyencoder serve --model MODEL --index INDEX`",
        argument="index",
    )
