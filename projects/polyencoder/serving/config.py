"""The settings of a server: model and index, address, limits."""

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
    """Requests in progress; one more is answered 429, with the seconds to wait in Retry-After."""
    connections: int = 1024
    """Open connections; a request on one more is answered 503."""
    bytes: int = 8 << 20
    """Of a request's body; more is answered 413."""
    documents: int = 1000
    """Texts of a request; more is answered 422, as everything below."""
    characters: int = 100_000
    """Of one text."""
    tokens: int = 1 << 17
    """Of a request, as the model reads them: after texts were cut to what it takes."""
    top_k: int = 1000
    """Results of a search."""
    queued_tokens: int = 1 << 19
    """Tokens that wait for the model before `/ready` says that it is not."""
    ready_seconds: float = 5.0
    """In which the index has to say that it can be searched; if it does not, `/ready` is 503."""
    seconds: float = 30.0
    """From the whole request to its answer; later it is answered 504, and the work is dropped."""
    read_seconds: float = 10.0
    """For the body of a request; a slower one is answered 408. Slow headers are a proxy's business."""
    drain_seconds: float = 30.0
    """After SIGTERM: what is under way then is finished, what takes longer is dropped."""

    def __post_init__(self) -> None:
        check_fields(self)
        for one in fields(self):
            if not (value := getattr(self, one.name)) > 0:
                raise ConfigError(f"{one.name} is {value}; it must be above 0", argument=one.name)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How `polyencoder serve` was called.

    Raises:
        ConfigError: the settings contradict each other; an address that others reach, but no key.
    """

    model: str
    index: str | None = None
    """A folder, or `milvus:` and an address; None for a server that only re-ranks."""
    rerank: str | None = None
    """A cross-encoder that orders the first results of a search."""
    rerank_k: int = 50
    min_probability: LeastProbability | None = None
    """Of searches that say nothing else."""
    no_answer: str | None = None
    """What the chat says where nothing is likely enough; None for "I have no good answer to that."."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 for one that is free."""
    api_key: str | None = field(default=None, repr=False)
    """What requests must show as `Authorization: Bearer KEY`."""
    allow_hosts: tuple[str, ...] = ()
    """Names, without ports, by which clients may call this server, besides those of the loopback."""
    workers: int = 1
    threads: int | None = None
    """Of each worker's model; None for what torch would take, shared out among the workers."""
    device: str | None = None
    model_dtype: WeightDtype = "float32"
    backend: Backend = "torch"
    batch_tokens: int = 4096
    """Tokens that go through the model together; one text that has more goes alone."""
    sessions: str | None = None
    """A SQLite file of the chat's sessions; None for a temporary one, if there is an index to chat with."""
    max_sessions: int = 10_000
    session_seconds: float = 24 * 3600.0
    """After which a session that nobody spoke in is forgotten."""
    feedback: str | None = None
    """A file to which the page's thumbs are written; None for a page without them."""
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
        """Whether only this machine reaches it."""
        return self.host in LOOPBACK


def no_index(purpose: str) -> ConfigError:
    """The error of a request that needs an index, in a server that has none."""
    return ConfigError(
        f"this server has no index to {purpose}: make one with `polyencoder index --model MODEL --candidates FILE "
        "--out INDEX`, and start the server with `polyencoder serve --model MODEL --index INDEX`",
        argument="index",
    )
