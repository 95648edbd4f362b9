"""`/v1/rerank`, `/rerank` and `/v2/rerank`, the API of Cohere, Jina and vLLM; `/score`, vLLM's API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from polyencoder.calibration.relevance import ranked, single
from polyencoder.errors import InputError
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import Array, candidate, context, pair
from polyencoder.serving.messages import Answer, Asked, Body, Count, answer_fields
from polyencoder.serving.model_thread import Job, WorkItem
from polyencoder.serving.service import Serving

router = APIRouter(tags=["rerank"])


class Document(BaseModel):
    """A document as an object; fields other than `text` are returned unchanged."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(description="What is ranked.")


class RerankRequest(Asked):
    """Fields of these contracts that this server does not use, such as `max_chunks_per_doc`, are ignored."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    documents: list[str | Document] = Field(description="Texts, or objects with `text`.")
    top_n: Count | None = Field(None, description="Only the best n (all).")
    return_documents: bool = Field(False, description="Whether results contain their documents.")


class Result(BaseModel):
    """A document of a ranking."""

    index: int = Field(description="The document's place in the request, from 0.")
    relevance_score: float = Field(
        description="0 to 1: the probability if the model is calibrated, else a sigmoid of the score."
    )
    document: dict[str, Any] | None = Field(
        default=None, description="The document as it was sent, a text as `{text}`, with `return_documents`."
    )


class RerankResponse(Answer):
    """Documents in order, best first. Cohere's clients read `meta`."""

    results: list[Result]
    meta: dict[str, Any] = Field(description="The version of Cohere's API.")


@router.post("/rerank", response_model_exclude_none=True)
@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank(request: RerankRequest, service: Serving) -> RerankResponse:
    """Ranks documents by how well they answer the query."""
    return await _rerank(request, service, version="1", documents=request.return_documents)


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_v2(request: RerankRequest, service: Serving) -> RerankResponse:
    """Ranks documents like `/v1/rerank`, without `return_documents`, which Cohere's version 2 lacks."""
    return await _rerank(request, service, version="2", documents=False)


async def _rerank(request: RerankRequest, service: Serving, *, version: str, documents: bool) -> RerankResponse:
    objects = [Document(text=one) if isinstance(one, str) else one for one in request.documents]
    order, tokens = await rank(service.engine, request.turns, [one.text for one in objects], top_n=request.top_n)
    return RerankResponse(
        **answer_fields("rerank", model=service.name, tokens=tokens),
        results=[
            Result(index=place, relevance_score=relevance, document=objects[place].model_dump() if documents else None)
            for place, relevance in order
        ],
        meta={"api_version": {"version": version}},
    )


class ScoreRequest(Body):
    """One text against one or many, or two lists of equal length as pairs."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    text_1: str | list[str] = Field(description="Contexts.")
    text_2: str | list[str] = Field(description="Candidates.")


class Score(BaseModel):
    """The score of a pair."""

    index: int = Field(description="The pair's place in the request, from 0.")
    object: str = "score"
    score: float = Field(description="0 to 1, independent of the other pairs.")


class ScoreResponse(Answer):
    """The scores of pairs, in the order of the request."""

    object: str = "list"
    created: int = Field(description="Seconds since 1970.")
    data: list[Score]


@router.post("/score")
@router.post("/v1/score")
async def score(request: ScoreRequest, service: Serving) -> ScoreResponse:
    """Scores how well each second text answers the first."""
    firsts = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    seconds = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    if len(firsts) not in (1, len(seconds)):
        raise InputError(
            f"text_1 has {len(firsts)} texts and text_2 {len(seconds)}: give one text_1, or as many as text_2 has",
            argument="text_1",
        )
    firsts = firsts * (len(seconds) if len(firsts) == 1 else 1)
    engine = service.engine
    engine.texts(seconds, name="text_2")
    of_context: dict[str, list[str]] = {}
    for first, second in zip(firsts, seconds, strict=True):
        of_context.setdefault(first, []).append(second)
    asked = [(engine.turns([first], name="text_1"), own) for first, own in of_context.items()]
    scores, tokens = await score_lists(engine, asked, name="text_2")
    values = {first: iter(found.tolist()) for first, found in zip(of_context, scores, strict=True)}
    return ScoreResponse(
        **answer_fields("score", model=service.name, tokens=tokens),
        created=int(time.time()),
        data=[
            Score(index=place, score=single(next(values[first]), engine.ranker.calibration))
            for place, first in enumerate(firsts)
        ],
    )


async def rank(
    engine: Engine, turns: Sequence[str], documents: Sequence[str], *, top_n: int | None = None
) -> tuple[list[tuple[int, float]], int]:
    """Ranks documents for a context: (place, relevance 0 to 1), best first; and the number of tokens.

    Raises:
        InputError: a text exceeds the limits.
    """
    documents = engine.texts(documents)
    scores, tokens = await score_lists(engine, [(engine.turns(turns), documents)], name="documents")
    return ranked(documents, scores[0], engine.ranker.calibration, top_n=top_n), tokens


async def score_lists(
    engine: Engine, asked: Sequence[tuple[Sequence[str], Sequence[str]]], *, name: str
) -> tuple[list[Array], int]:
    """The scores [documents] of each context's documents, and the total number of tokens, which is limited.

    Equal documents of a context are scored once.
    """
    distinct = [list(dict.fromkeys(documents)) for _, documents in asked]
    groups = await engine.tokenized(
        lambda: [_items(engine, turns, texts) for (turns, _), texts in zip(asked, distinct, strict=True)]
    )
    items = [item for group in groups for item in group]
    tokens = engine.tokens(items, name=name, numbered=len(distinct[0]) if distinct == [list(asked[0][1])] else 0)
    ends = [0, *accumulate(map(len, groups))]
    slices = [slice(*both) for both in pairwise(ends)]

    def of_group(results: Sequence[Any]) -> Array:
        if engine.ranker.model.reads_pairs:
            return np.array(results, dtype=np.float32)
        *vectors, encoded = results
        return engine.forward.score(encoded, vectors)

    def finish(jobs: Sequence[Job]) -> list[list[Array]]:
        return [[of_group(job.results[group]) for group in slices] for job in jobs]

    scores = await engine.run(Job(items, finish))
    found = []
    for (_, documents), texts, values in zip(asked, distinct, scores, strict=True):
        of_text = dict(zip(texts, values.tolist(), strict=True))
        found.append(np.array([of_text[one] for one in documents], dtype=np.float32))
    return found, tokens


def _items(engine: Engine, turns: Sequence[str], documents: Sequence[str]) -> list[WorkItem]:
    ranker = engine.ranker
    ids = ranker.text.context_ids(turns)
    candidates = ranker.text.candidate_ids(documents, remember=False)
    if ranker.model.reads_pairs:
        return [pair(ids, one) for one in candidates]
    return [*map(candidate, candidates), context(ids)]
