"""`/v1/search`: the best candidates of the index. Concurrent searches with equal settings share a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from polyencoder.errors import InputError
from polyencoder.index.filters import Exactness
from polyencoder.index.hits import Found, Hit
from polyencoder.index.options import SearchOptions
from polyencoder.serving.config import not_calibrated
from polyencoder.serving.forward import context
from polyencoder.serving.messages import Answer, Asked, Body, Count, KnownFields, Share, answer_fields
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Service, Serving

router = APIRouter(tags=["search"])


class SearchParameters(KnownFields, Body):
    """The settings of a search, as in `polyencoder search`. An unknown field is an error."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    top_k: Count = Field(10, description="How many results; at most the server's limit.")
    filter: dict[str, Any] | None = Field(
        None,
        description="Fields of the metadata and the value of each, or in each list; a list means any of its values. A "
        "text never equals a number.",
    )
    exactness: Exactness | None = Field(None, description="At least this (the fastest that the index has).")
    effort: Count | None = Field(
        None, description="Of FAISS: ef_search of hnsw, nprobe of ivf (as the index was built)."
    )
    list_length: Count | None = Field(None, description="Candidates that each vector of the context proposes.")
    diversity: Share | None = Field(None, description="More leaves out more candidates that resemble better ones.")
    group_by: str | None = Field(None, description="A field of the metadata: few results for each of its values.")
    group_size: Count | None = Field(None, description="Results for each value (1).")
    hybrid: bool = Field(False, description="Also search by words, in an index that has them.")
    words_only: bool = Field(False, description="Search by words alone; the server's `min_probability` does not apply.")
    min_probability: Share | Literal["auto"] | None = Field(
        None, description="Leave out less probable results (the server's); the model must be calibrated."
    )
    keep_turns: bool = Field(False, description="Also return candidates that equal a turn of the context.")


_OPTIONS = {one.name for one in fields(SearchOptions)}


class SearchRequest(Asked, SearchParameters):
    """A context and the settings of its search."""


class SearchResult(BaseModel):
    """A candidate that was found."""

    id: str
    text: str
    metadata: dict[str, Any] | None = Field(default=None, description="Of the candidate, if it has any.")
    score: float = Field(description="The model's score, without a unit.")
    rerank_score: float | None = Field(default=None, description="The score that reranking orders by.")
    probability: float | None = Field(default=None, description="0 to 1; of a calibrated model.")
    considered: int | None = Field(
        default=None, description="With diversity or groups: how many they were chosen from."
    )
    word_score: float | None = Field(default=None, description="BM25, if words found it.")
    fused_score: float | None = Field(default=None, description="The value that a hybrid search orders by.")
    found: Found = Field(description="Whether a better candidate may have been missed.")
    part: int | None = Field(default=None, description="The number of its index, if there are several.")


class SearchResponse(Answer):
    """Candidates in order, best first, and the milliseconds of each step."""

    results: list[SearchResult] = Field(description="Best first.")
    missing: list[int] | None = Field(None, description="Numbers of the indexes that did not answer.")
    milliseconds: dict[str, float] = Field(description="Of each step.")


@router.post("/v1/search", response_model_exclude_none=True)
async def search(request: SearchRequest, service: Serving) -> SearchResponse:
    """Searches the index for the best candidates for a context, best first."""
    _, own = await search_fields(service, request.turns, request, kind="search", name="query")
    return SearchResponse(**own)


async def search_fields(
    service: Service, turns: Sequence[str], request: SearchParameters, *, kind: str, name: str
) -> tuple[list[Hit], dict[str, Any]]:
    """The hits of a request, and the fields of its `SearchResponse`."""
    options = SearchOptions(**request.model_dump(include=_OPTIONS))
    hits, tokens, milliseconds = await find_hits(
        service, turns, options, min_probability=request.min_probability, keep_turns=request.keep_turns, name=name
    )
    shared = answer_fields(kind, model=service.name, tokens=tokens)
    missing = hits[0].missing if hits else () if service.index is None else service.index.missing
    results = [hit._asdict() for hit in hits]
    return hits, {**shared, "results": results, "missing": missing or None, "milliseconds": milliseconds}


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
