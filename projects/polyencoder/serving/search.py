"""`/v1/search`: the best candidates of the index. Concurrent searches with equal settings share a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field, create_model

from polyencoder.errors import InputError
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.serving.config import not_calibrated
from polyencoder.serving.forward import context
from polyencoder.serving.messages import Answer, Asked, Body, KnownFields, Share, answer_fields, fields_of
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Service, Serving

router = APIRouter(tags=["search"])


_options: Any = create_model(
    "SearchFields",
    __base__=(KnownFields, Body),
    **fields_of(SearchOptions, without=("tolerance", "dtype")),  # of scans and of codes, for experiments
)
_hit: Any = create_model("HitFields", **fields_of(Hit))


class SearchParameters(_options):  # the fields of `SearchOptions`, made above
    """The settings of a search, as in `polyencoder search`. An unknown field is an error."""

    model_config = ConfigDict(strict=True)  # true is not 1

    model: str | None = Field(None, description="Ignored: a server has one model.")
    min_probability: Share | Literal["auto"] | None = Field(
        None, description="Leave out less probable results (the server's); the model must be calibrated."
    )
    keep_turns: bool = Field(False, description="Also return candidates that equal a turn of the context.")

    @property
    def options(self) -> SearchOptions:
        """The options of the search. Raises InputError or ConfigError for those that cannot be."""
        return SearchOptions(**self.model_dump(include={*_options.model_fields}))


class SearchRequest(Asked, SearchParameters):
    """A context and the settings of its search."""


class SearchResult(_hit):  # the fields of `Hit`, made above
    """A candidate that was found."""

    metadata: dict[str, Any] | None = Field(None, description="Of the candidate, if it has any.")


class SearchResponse(Answer):
    """Candidates in order, best first, and the milliseconds of each step."""

    results: list[SearchResult] = Field(description="Best first.")
    milliseconds: dict[str, float] = Field(description="Of each step.")


@router.post("/v1/search", response_model_exclude_none=True)
async def search(request: SearchRequest, service: Serving) -> SearchResponse:
    """Searches the index for the best candidates for a context, best first."""
    _, own = await search_fields(
        service, request.turns(system=service.config.system), request, kind="search", name="query"
    )
    return SearchResponse(**own)


async def search_fields(
    service: Service, turns: Sequence[str], request: SearchParameters, *, kind: str, name: str
) -> tuple[list[Hit], dict[str, Any]]:
    """The hits of a request, and the fields of its `SearchResponse`."""
    service.engine.check_filter(request.filter)  # before the options read it
    hits, tokens, milliseconds = await find_hits(
        service,
        turns,
        request.options,
        min_probability=request.min_probability,
        keep_turns=request.keep_turns,
        name=name,
    )
    shared = answer_fields(kind, model=service.name, tokens=tokens)
    results = [hit._asdict() for hit in hits]
    return hits, {**shared, "results": results, "milliseconds": milliseconds}


async def find_hits(
    service: Service,
    turns: Sequence[str],
    options: SearchOptions,
    *,
    min_probability: float | str | None = None,
    keep_turns: bool = False,
    name: str = "query",
) -> tuple[list[Hit], int, dict[str, float]]:
    """Searches the index: the hits, best first; the number of tokens; and the milliseconds of each step.

    The steps are `tokenize`, `queue`, `encode`, and `search`, which includes re-ranking.

    Args:
        service: with the index.
        turns: the context.
        min_probability: None for the server's, which a search by words alone does not read.
        keep_turns: also return candidates that are turns of the context.
        name: the request's field, for errors.

    Raises:
        InputError, ConfigError: an option does not fit the index or the limits; there is no index.
    """
    start = time.perf_counter()
    engine, index = service.engine, service.index
    if options.top_k is not None and options.top_k > engine.limits.top_k:
        raise InputError(f"top_k is {options.top_k}; it must be at most {engine.limits.top_k}", argument="top_k")
    turns = engine.turns(turns, name=name)
    least = min_probability
    if least is None and not options.words_only:  # results by words have no probabilities
        least = service.config.min_probability
    if least is not None and index is not None and not service.search_calibrated:
        raise not_calibrated()
    settings = (options, least, keep_turns)
    remote = index is not None and index.remote
    if index is not None and not remote and await engine.tokenized(index.__len__) == 0:
        return [], 0, {}

    def tokenized() -> list[int]:
        if not remote:  # once, on a thread that may block
            service.searcher(*settings)  # raises the errors of this request
        return engine.ranker.text.context_ids(turns)

    def find(jobs: Sequence[Job]) -> list[list[Hit]]:
        if index is None or len(index) == 0:  # all candidates were removed in the meantime
            return [[] for _ in jobs]
        encoded = [job.results[0] for job in jobs]
        return engine.forward.find(service.searcher(*settings), encoded, [job.payload for job in jobs])

    item = context(await engine.tokenized(tokenized))
    tokenize_seconds = time.perf_counter() - start
    job = Job([item], find, group_key=repr(settings), payload=turns, blocking_io=remote)
    hits = await engine.run(job)
    seconds = {"tokenize": tokenize_seconds, **job.seconds}
    seconds["search"] = seconds.pop("score")
    return hits, item.cost, {step: round(1000 * value, 3) for step, value in seconds.items()}
