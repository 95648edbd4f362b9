"""`/v1/rerank`, `/rerank` and `/v2/rerank`, the contract of Cohere, Jina and vLLM; `/score`, that of vLLM."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from polyencoder.errors import InputError
from polyencoder.serving import reranking
from polyencoder.serving.messages import Asked, Body
from polyencoder.serving.routes.common import Serving, Usage, model_name, new_id

__all__ = ["router"]

router = APIRouter(tags=["rerank"])


class Document(BaseModel):
    """A document that is an object; other fields than `text` come back, and are not read."""

    model_config = ConfigDict(extra="allow")

    text: str


class RerankRequest(Asked):
    """Fields that these contracts have and this server has no use for, such as `max_chunks_per_doc`, are ignored."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False


class Result(BaseModel):
    """A document of a ranking."""

    index: int
    relevance_score: float = Field(description="0 to 1: the probability of a calibrated model, else a sigmoid.")
    document: Document | None = None


class RerankResponse(BaseModel):
    """Documents in order, best first. `meta` is what Cohere's clients look for."""

    id: str
    model: str
    usage: Usage
    results: list[Result]
    meta: dict[str, Any]


async def _rerank(request: RerankRequest, service: Serving, *, version: str, documents: bool) -> RerankResponse:
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    turns = request.turns
    found = await reranking.rank(service.engine, turns, texts, top_n=request.top_n)
    results = [
        Result(index=place, relevance_score=score, document=_shown(request.documents[place]) if documents else None)
        for place, score in found.order
    ]
    return RerankResponse(
        id=new_id("rerank"),
        model=model_name(service),
        usage=Usage.of(found.tokens),
        results=results,
        meta={"api_version": {"version": version}},
    )


def _shown(document: str | Document) -> Document:
    return Document(text=document) if isinstance(document, str) else document


@router.post("/rerank", response_model_exclude_none=True)
@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank(request: RerankRequest, service: Serving) -> RerankResponse:
    """Documents in the order of how well they answer the query."""
    return await _rerank(request, service, version="1", documents=request.return_documents)


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_v2(request: RerankRequest, service: Serving) -> RerankResponse:
    """The same, without `return_documents`, which Cohere's version 2 does not have."""
    return await _rerank(request, service, version="2", documents=False)


class ScoreRequest(Body):
    """One text with one or many, or as many pairs as both have texts."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    text_1: str | list[str] = Field(description="Contexts.")
    text_2: str | list[str] = Field(description="Candidates.")


class Score(BaseModel):
    """Of a pair."""

    index: int
    object: str = "score"
    score: float = Field(description="0 to 1, of the pair by itself.")


class ScoreResponse(BaseModel):
    """The scores of pairs, in the order of the request."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Score]
    usage: Usage


@router.post("/score")
@router.post("/v1/score")
async def score(request: ScoreRequest, service: Serving) -> ScoreResponse:
    """How well each second text answers the first."""
    firsts = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    seconds = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    if len(firsts) not in (1, len(seconds)):
        raise InputError(
            f"text_1 has {len(firsts)} texts and text_2 {len(seconds)}: give one text_1, or as many as text_2 has",
            argument="text_1",
        )
    found = await reranking.score(
        service.engine, list(zip(firsts * (len(seconds) if len(firsts) == 1 else 1), seconds, strict=True))
    )
    return ScoreResponse(
        id=new_id("score"),
        created=int(time.time()),
        model=model_name(service),
        data=[Score(index=place, score=value) for place, value in enumerate(found.values)],
        usage=Usage.of(found.tokens),
    )
