"""`/v1/search` and `/v1/chat`: the best candidates of the index. Concurrent equal searches share a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field, create_model, field_validator

from polyencoder.calibration import AnswerOptions
from polyencoder.errors import InputError
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.search.contexts import Contexts
from polyencoder.serving.config import NO_ANSWER
from polyencoder.serving.forward import build_context_item
from polyencoder.serving.messages import (
    Answer,
    Body,
    ContextRequest,
    KnownFields,
    Message,
    Messages,
    build_answer_fields,
    make_fields,
    read_turns,
)
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Service, Serving

router = APIRouter()

_options: Any = create_model("SearchFields", __base__=(KnownFields, Body), **make_fields(SearchOptions))
_hit: Any = create_model("HitFields", **make_fields(Hit))


class SearchParameters(_options):  # the fields of `SearchOptions`, made above
    """The settings of a search, as in `polyencoder search`. An unknown field is an error."""

    model_config = ConfigDict(strict=True)  # true is not 1

    model: str | None = Field(None, description="Ignored: a server has one model.")
    keep_turns: bool = Field(False, description="Also return candidates that equal a turn of the context.")

    @property
    def options(self) -> SearchOptions:
        """The options of the search. Raises InputError or ConfigError for those that cannot be."""
        return SearchOptions(**self.model_dump(include={*_options.model_fields}))


class SearchRequest(ContextRequest, SearchParameters):
    """A context and the settings of its search."""


class SearchResult(_hit):  # the fields of `Hit`, made above
    """A candidate that was found."""

    metadata: dict[str, Any] | None = Field(None, description="Of the candidate, if it has any.")


class SearchResponse(Answer):
    """Candidates in order, best first, and the milliseconds of each step."""

    results: list[SearchResult] = Field(description="Best first.")
    best_left_out: SearchResult | None = Field(None, description="The best candidate, if none is probable enough.")
    milliseconds: dict[str, float] = Field(description="Of each step.")


@router.post("/v1/search", tags=["search"], response_model_exclude_none=True)
async def search(request: SearchRequest, service: Serving) -> SearchResponse:
    """Searches the index for the best candidates for a context, best first."""
    _, fields = await search_request(
        service,
        request.collect_turns(system=service.config.system),
        request,
        answers=service.config.answers,
        kind="search",
        name="query",
    )
    return SearchResponse(**fields)


async def search_request(
    service: Service,
    turns: Sequence[str],
    request: SearchParameters,
    *,
    answers: AnswerOptions,
    kind: str,
    name: str,
) -> tuple[list[Hit], dict[str, Any]]:
    """The hits of a request, and the fields of its `SearchResponse`."""
    service.engine.check_filter(request.filter)  # before the options read it
    hits, tokens, milliseconds, best_left_out = await find_hits(
        service, turns, request.options, answers=answers, keep_turns=request.keep_turns, name=name
    )
    shared = build_answer_fields(kind, model=service.name, tokens=tokens)
    results = [hit._asdict() for hit in hits]
    left_out = best_left_out and best_left_out._asdict()
    return hits, {**shared, "results": results, "best_left_out": left_out, "milliseconds": milliseconds}


async def find_hits(
    service: Service,
    turns: Sequence[str],
    options: SearchOptions,
    *,
    answers: AnswerOptions | None = None,
    keep_turns: bool = False,
    name: str = "query",
) -> tuple[list[Hit], int, dict[str, float], Hit | None]:
    """Searches the index: hits, best first; tokens; milliseconds of each step; the best hit if all were left out.

    The steps are `tokenize`, `queue`, `encode`, and `search`, which includes re-ranking.

    Args:
        service: with the index.
        turns: the context.
        answers: where the options have none; a search by words alone, without probabilities, does not read them.
        keep_turns: also return candidates that are turns of the context.
        name: the request's field, for errors.

    Raises:
        InputError, ConfigError: an option does not fit the index or the limits; there is no index.
    """
    start = time.perf_counter()
    engine, index = service.engine, service.index
    for field in ("top_k", "list_length"):
        if (count := getattr(options, field) or 0) > (limit := getattr(engine.limits, field)):
            raise InputError(f"{field} is {count}; it must be at most {limit}", argument=field)
    turns = engine.check_turns(turns, name=name)
    if answers is not None and not options.limits and not options.words_only:
        options = replace(options, **vars(answers))
    remote = index is not None and index.remote
    if index is not None and not remote and await engine.tokenize(index.__len__) == 0:
        return [], 0, {}, None

    def read() -> list[int]:
        if not remote:  # once, on a thread that may block
            service.build_searcher(options, keep_turns=keep_turns)  # raises the errors of this request
        return engine.ranker.text.tokenize_context(turns)

    def find(jobs: Sequence[Job]) -> list[tuple[list[Hit], Hit | None]]:
        if index is None or len(index) == 0:  # all candidates were removed in the meantime
            return [([], None) for _ in jobs]
        encoded = Contexts.concatenate([job.results[0] for job in jobs])
        searcher = service.build_searcher(options, keep_turns=keep_turns)
        results = searcher.find(encoded, [job.payload for job in jobs])
        return list(zip(results, searcher.improbable, strict=True))

    with engine.metrics.tokenizing.time():
        item = build_context_item(await engine.tokenize(read))
    tokenize_seconds = time.perf_counter() - start
    job = Job([item], find, group_key=repr((options, keep_turns)), payload=turns, blocking_io=remote)
    hits, best_left_out = await engine.run(job)
    seconds = {"tokenize": tokenize_seconds, **job.seconds}
    seconds["search"] = seconds.pop("score")
    return hits, item.cost, {step: round(1000 * value, 3) for step, value in seconds.items()}, best_left_out


class ChatRequest(SearchParameters):
    """A dialogue and the settings of the search for its reply. The server stores nothing."""

    messages: Messages = Field(description="The whole dialogue, the user's last message last.")

    @field_validator("messages")
    @classmethod
    def _check_last(cls, messages: list[Message]) -> list[Message]:
        if not messages or messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        return messages


class ChatResponse(SearchResponse):
    """A reply and its alternatives."""

    reply: str = Field(description="The best candidate's text, or that there is no good answer.")
    answered: bool = Field(description="Whether a good answer was found; otherwise the reply says that there is none.")


@router.post("/v1/chat", tags=["chat"], response_model_exclude_none=True)
async def chat(request: ChatRequest, service: Serving) -> ChatResponse:
    """Returns the best reply that does not repeat an earlier turn."""
    turns = read_turns(request.messages, system=service.config.system)
    hits, fields = await search_request(
        service, turns, request, answers=service.chat_answers, kind="chat", name="messages"
    )
    reply = hits[0].text if hits else service.config.no_answer or NO_ANSWER
    return ChatResponse(**fields, reply=reply, answered=bool(hits))
