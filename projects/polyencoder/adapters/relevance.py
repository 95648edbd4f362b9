"""Orders documents by relevance, with a ranker in this process or a server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import requests
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from polyencoder.calibration.probability import rank_documents
from polyencoder.checks import is_blank
from polyencoder.errors import ConfigError, InputError, PolyencoderError, get_first_line
from polyencoder.ranker import Ranker
from polyencoder.text.passages import split_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalRanker:
    """A ranker in this process."""

    ranker: Ranker

    def __call__(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """(position, relevance 0 to 1) of each document, best first; of the first `top_n`, at least 1, or of all.

        As on a server, a long document has the score of its best passage.
        """
        text = self.ranker.text
        passages = [[document] for document in documents]
        if not text.config.candidate_rows:
            passages = [split_text(document, text, tokens=text.candidate_room) for document in documents]
        scores = self.ranker.score([query], [*chain.from_iterable(passages)])[0]
        best = np.maximum.reduceat(scores, np.cumsum([0, *map(len, passages[:-1])]))
        return rank_documents(documents, best, self.ranker.calibration, top_n=top_n)


@dataclass(frozen=True)
class RemoteRanker:
    """`polyencoder serve`, or another server with Cohere's or Jina's rerank route.

    url: such as `http://127.0.0.1:8000`, to which `/v1/rerank` is added, or one that ends in `/rerank`. served_model:
    the name of the model in requests, which Cohere and Jina need. seconds: to wait for an answer.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    served_model: str | None = None
    seconds: float = 60.0

    def __call__(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """Raises PolyencoderError if the server cannot be reached or refuses, or its answer is not a ranking."""
        optional = {"top_n": top_n, "model": self.served_model}
        request = {"query": query, "documents": list(documents)} | {k: v for k, v in optional.items() if v is not None}
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        address = self.url.rstrip("/")
        if not address.endswith("/rerank"):
            address = f"{address.removesuffix('/v1')}/v1/rerank"
        try:
            answer = requests.post(address, json=request, headers=headers, timeout=self.seconds)
        except (requests.RequestException, ValueError) as error:
            raise PolyencoderError(f"{address}: no answer ({get_first_line(error):.200})") from None
        if not answer.ok:
            kind = InputError if answer.status_code in (400, 422) else PolyencoderError
            raise kind(f"{address}: {answer.status_code}, {_read_reason(answer):.300}")
        try:
            ranked = [(int(result["index"]), float(result["relevance_score"])) for result in answer.json()["results"]]
        except (ValueError, KeyError, TypeError):
            raise PolyencoderError(f"{address}: the answer is not a ranking: {answer.text:.200}") from None
        if not all(0 <= position < len(documents) for position, _ in ranked):
            raise PolyencoderError(f"{address}: ranks a document that was not sent")
        return ranked


def _read_reason(answer: requests.Response) -> str:
    """A server's reason for refusing: `message`, `detail` or `error`, else its whole answer."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    for name in ("message", "detail", "error"):
        if isinstance(body, dict) and body.get(name):
            return str(body[name])
    return " ".join(answer.text.split()) or answer.reason


Relevance = LocalRanker | RemoteRanker
"""Orders documents for a query."""


def select_best_documents(
    relevance: Relevance, query: str, documents: Sequence[str], *, top_n: int | None
) -> list[tuple[int, float | None]]:
    """(position, relevance) of the best documents, best first. Empty ones follow, with None: no model reads them."""
    positions = [position for position, text in enumerate(documents) if not is_blank(text)]
    if empty := len(documents) - len(positions):
        _log.warning("%d of %d documents are empty: they come last, without a score", empty, len(documents))
    ranked = relevance(query, [documents[position] for position in positions], top_n=top_n) if positions else []
    last = [(position, None) for position, text in enumerate(documents) if is_blank(text)]
    return [*((positions[idx], value) for idx, value in ranked), *last][:top_n]


def make_relevance(model: Ranker | str, *, api_key: str | None = None, served_model: str | None = None) -> Relevance:
    """Relevance by a ranker (also by folder or hub id), or by a server (URL).

    Raises:
        ConfigError: a key or a model's name without a server.
        CheckpointError: there is no such model.
    """
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        return RemoteRanker(model, api_key, served_model)
    for name, value in {"api_key": api_key, "served_model": served_model}.items():
        if value is not None:
            raise ConfigError(f"{name} is only for a server: leave it out", argument=name)
    return LocalRanker(model if isinstance(model, Ranker) else Ranker.from_pretrained(model))


class Reranker(BaseModel):
    """The fields of the rerankers that are models of pydantic."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Ranker | str
    top_n: int | None = Field(None, ge=1)
    api_key: SecretStr | None = Field(None, exclude=True)
    served_model: str | None = None
    _relevance: Relevance = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        key = None if self.api_key is None else self.api_key.get_secret_value()
        self._relevance = make_relevance(self.model, api_key=key, served_model=self.served_model)
