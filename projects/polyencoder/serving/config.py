"""Settings of a server: model and index, address, limits."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from polyencoder.calibration import AnswerOptions
from polyencoder.checks import check_place
from polyencoder.errors import ConfigError
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import OneIndex
from polyencoder.settings.metadata import Needs, Parlai
from polyencoder.text.dialogue import SystemMessages
from polyencoder.validation import Count, Positive

NO_ANSWER = "I have no good answer to that."
"""The chat's default reply if no candidate is likely enough."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses reachable only from this machine."""


@settings(panel="Limits of each worker")
class Limits(Settings):
    """The limits of one worker."""

    concurrent: Annotated[Count, Parameter(name="--max-concurrent")] = 256
    """Maximum concurrent requests; one more is answered 429, with the seconds to wait in Retry-After."""
    values: Annotated[Count, Parameter(parse=False)] = 30_000
    """Maximum values in the JSON of a request; more are answered 413."""
    filter_values: Annotated[Count, Parameter(parse=False)] = 1000
    """Maximum values of a filter; more are answered 422."""
    bytes: Annotated[Count, Parameter(name="--max-bytes")] = 8 << 20
    """Maximum bytes of a request; more are answered 413."""
    documents: Annotated[Count, Parameter(name="--max-documents")] = 1000
    """Maximum texts of a request; more are answered 422."""
    characters: Annotated[Count, Parameter(name="--max-characters")] = 100_000
    """Maximum characters of a text; more are answered 422."""
    tokens: Annotated[Count, Parameter(name="--max-tokens")] = 1 << 17
    """Maximum tokens that the model reads for a request; more are answered 422. Candidates to add do not count."""
    top_k: Annotated[Count, Parameter(parse=False)] = 1000
    """Maximum results of a search."""
    list_length: Annotated[Count, Parameter(parse=False)] = 4096
    """Maximum candidates that each code of a context proposes in a search; more are answered 422."""
    queued_tokens: Annotated[Count, Parameter(parse=False)] = 1 << 19
    """Tokens waiting for the model above which `/ready` is 503."""
    ready_seconds: Annotated[Positive, Parameter(parse=False)] = 5.0
    """Seconds that the index has to prove that it can be searched; else `/ready` is 503."""
    seconds: Annotated[Positive, Parameter(name="--timeout")] = 30.0
    """Seconds after which a request is given up and answered 504."""
    read_seconds: Annotated[Positive, Parameter(parse=False)] = 10.0
    """Seconds for the body of a request; a slower one is answered 408."""
    drain_seconds: Positive = 30.0
    """Seconds to finish open requests after SIGTERM."""


@settings()
class ServerConfig(RankerSettings):
    """The settings of `polyencoder serve`. ConfigError for contradictory ones, or an open address without a key."""

    index: OneIndex | None = None
    """The index to search: a folder, or its address, milvus:... or postgres://... (default: none, it only reranks)."""
    rerank: Annotated[str | None, Needs("index"), Parlai()] = None
    """A cross-encoder to rerank the first results."""
    rerank_k: Annotated[Count | None, Needs("index"), Parlai()] = None
    """How many results are reranked (default: 50 by a cross-encoder, 100 by a late-interaction encoder itself)."""
    answers: Annotated[AnswerOptions, Needs("index")] = field(default_factory=AnswerOptions)
    no_answer: Annotated[str | None, Needs("index"), Parlai()] = None
    """The chat's reply if no candidate is likely enough (default: "I have no good answer to that.")."""
    system: SystemMessages = "leave-out"
    """The system messages of chats: left out, or the persona before the conversation."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a key."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 for a free one."""
    api_key: Annotated[
        str | None,
        BeforeValidator(lambda key: key or None),
        Parameter(env_var="POLYENCODER_API_KEY", env_var_split=lambda _, key, **__: [key.strip()]),
    ] = field(default=None, repr=False)
    """The key in requests' `Authorization: Bearer KEY`; POLYENCODER_API_KEY is safer, as ps shows flags."""
    allow_hosts: Annotated[tuple[str, ...], Parameter(name="--allow-host")] = ()
    """Host name that clients may use for this server; repeatable (default: the loopback's)."""
    allow_origins: Annotated[tuple[str, ...], Parameter(name="--allow-origin")] = ()
    """A site whose pages may call this server, such as https://shop.example; repeatable (default: none)."""
    root_path: str = ""
    """The path under which a proxy offers this server, such as /ranker (default: none)."""
    workers: Count = 1
    """Worker processes, each with its own model; they share one index."""
    threads: Count | None = None
    """Threads of each worker's model (default: torch's, divided among the workers)."""
    batch_tokens: Count = 4096
    """Maximum tokens of a batch through the model; a longer text is a batch of its own."""
    mcp: Literal["http", "stdio"] | None = None
    """Offer rerank, select and search as tools of MCP, the Model Context Protocol: http, at /mcp of the server; or
    stdio, to one client on standard input and output, instead of the server (needs the extra mcp)."""
    feedback: str | None = None
    """JSON lines file for ratings given on the page; polyencoder train reads it."""
    examples: Annotated[tuple[str, ...], Parameter(name="--example")] = ()
    """A message that the page offers to try; repeatable (default: words of three candidates)."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.feedback is not None:
            check_place("feedback", self.feedback)
        if self.api_key is not None and not re.fullmatch(r"[!-~]{8,}", self.api_key):
            raise ConfigError(
                "the key must be at least 8 visible ASCII characters, without spaces and line ends", argument="api_key"
            )
        for name in self.allow_hosts:
            if not name or "/" in name or "[" in name or name.count(":") == 1:
                raise ConfigError(
                    f"allow_hosts has {name!r:.100}; give names alone, without http:// and port", argument="allow_hosts"
                )
        for origin in self.allow_origins:
            if not re.fullmatch(r"(http://[a-z\d._:[\]-]+(?<!:80)|https://[a-z\d._:[\]-]+(?<!:443))", origin, re.ASCII):
                raise ConfigError(
                    f"allow_origins has {origin!r:.100}; give sites as browsers name them: https://, the host in "
                    "small letters and, if it is not the usual one, the port, without a path",
                    argument="allow_origins",
                )
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path):
            raise ConfigError(
                f"root_path is {self.root_path!r:.100}; it must begin with / and not end with it, as /ranker",
                argument="root_path",
            )
        if not all(text.strip() for text in self.examples):
            raise ConfigError("an example is empty; give a message that the page offers", argument="examples")
        if self.api_key is None and not self.local:
            raise ConfigError(
                f"host is {self.host}, which other machines can reach, and there is no key: give one, best in the "
                "environment as POLYENCODER_API_KEY, or listen on 127.0.0.1",
                argument="host",
            )

    @property
    def local(self) -> bool:
        """Whether the server is reachable only from this machine."""
        return self.host in LOOPBACK


def build_no_index_error(purpose: str) -> ConfigError:
    """The error for a request that needs an index which the server does not have."""
    return ConfigError(
        f"this server has no index to {purpose}: make one with `polyencoder index --model MODEL --candidates FILE "
        "--out INDEX`, and start the server with `polyencoder serve --model MODEL --index INDEX`",
        argument="index",
    )
