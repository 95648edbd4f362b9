"""What all adapters ask: documents in the order of their relevance, of a ranker in this process or of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import requests

from polyencoder.calibration.relevance import ranked
from polyencoder.errors import ConfigError, InputError, PolyencoderError, first_line
from polyencoder.ranker import Ranker

__all__ = ["InProcess", "OfServer", "Relevance", "relevance_of"]


class Relevance(Protocol):
    """Orders documents for a query."""

    def __call__(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """(place, relevance 0 to 1) of each document, best first; with `top_n` of only so many."""
        ...


@dataclass(frozen=True)
class InProcess:
    """A ranker that is loaded here."""

    ranker: Ranker

    def __call__(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        if not documents:
            return []
        return ranked(documents, self.ranker.score([query], documents)[0], self.ranker.calibration, top_n=top_n)


@dataclass(frozen=True)
class OfServer:
    """`polyencoder serve`, or another server of this contract, by its URL.

    Args:
        url: without `/v1/rerank`.
        api_key: where it has one.
        seconds: to wait for an answer.
    """

    url: str
    api_key: str | None = None
    seconds: float = 60.0

    def __call__(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """Raises PolyencoderError where the server cannot be reached or refuses; it says why."""
        if not documents:
            return []
        asked: dict[str, Any] = {"query": query, "documents": list(documents)}
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        address = f"{self.url.rstrip('/')}/v1/rerank"
        try:
            answer = requests.post(
                address, json=asked | ({"top_n": top_n} if top_n else {}), headers=headers, timeout=self.seconds
            )
            said = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise PolyencoderError(f"{address}: gives no answer ({first_line(error):.200})") from None
        if answer.status_code == 422:
            raise InputError(f"{address}: {said['message']}")
        if not answer.ok:
            raise PolyencoderError(f"{address}: {answer.status_code}, {said.get('message', answer.reason)}")
        return [(one["index"], one["relevance_score"]) for one in said["results"]]


def relevance_of(model: Ranker | str, *, api_key: str | None = None) -> Relevance:
    """Of a ranker, or its folder or hub id; or of a server, by its URL.

    Raises:
        ConfigError: a key for what is no server.
        CheckpointError: there is no such model.
    """
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        return OfServer(model, api_key)
    if api_key is not None:
        raise ConfigError("a key is for a server, and the model is none: leave it out", argument="api_key")
    return InProcess(model if isinstance(model, Ranker) else Ranker.from_pretrained(model))
