"""`/v1/rerank` and `/v2/rerank`, the API of Cohere, Jina and vLLM, and text-embeddings-inference's `/rerank`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from polyencoder.calibration import CalibratedRanker
from polyencoder.calibration.probability import rank_documents
from polyencoder.search.contexts import Array
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import build_candidate_item, build_context_item, build_pair_item
from polyencoder.serving.messages import Answer, Body, ContextRequest, Count, KnownFields, Texts, build_answer_fields
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Serving
from polyencoder.text import TextEncoder
from polyencoder.text.passages import split_text

router = APIRouter(tags=["rerank"])


class Document(BaseModel):
    """A document as an object; fields other than `text` are returned unchanged."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(description="What is ranked.")


class RerankRequest(KnownFields, ContextRequest):
    """A context and the documents to rank. An unknown field is an error."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    documents: Annotated[list[str | Document], Field(fail_fast=True)] = Field(
        description="Texts, or objects with `text`."
    )
    top_n: Count | None = Field(None, description="Only the best n (all).")
    return_documents: bool = Field(False, description="Whether results contain their documents.")
    max_tokens_per_doc: int | None = Field(None, description="Ignored: all of a long document is read, in passages.")
    max_chunks_per_doc: int | None = Field(None, description="Ignored: as many passages are read as there are.")
    priority: int | None = Field(None, description="Ignored.")


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
    meta: dict[str, Any] = Field(description="Cohere's `api_version`, and `warnings` of documents that were split.")


class TextsRequest(KnownFields, Body):
    """A text and the texts to rank, in the form of text-embeddings-inference."""

    query: str = Field(description="The context, a text.")
    texts: Texts = Field(description="What is ranked.")
    raw_scores: bool = Field(False, description="The model's scores in place of numbers from 0 to 1.")
    return_text: bool = Field(False, description="Whether results contain their texts.")
    truncate: bool | None = Field(None, description="Ignored: long texts are split.")
    truncation_direction: str | None = Field(None, description="Ignored.")


class Rank(BaseModel):
    """A text of a ranking."""

    index: int = Field(description="The text's place in the request, from 0.")
    score: float = Field(description="From 0 to 1, as `relevance_score` of `/v1/rerank`, or the model's score.")
    text: str | None = Field(None, description="The text, with `return_text`.")


@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank(request: RerankRequest, service: Serving) -> RerankResponse:
    """Ranks documents by how well they answer the query."""
    return await _rerank(request, service, version="1", documents=request.return_documents)


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_v2(request: RerankRequest, service: Serving) -> RerankResponse:
    """Ranks documents like `/v1/rerank`, without `return_documents`, which Cohere's version 2 lacks."""
    return await _rerank(request, service, version="2", documents=False)


def _tell_kind(body: Any) -> str:
    is_texts = isinstance(body, TextsRequest) or (isinstance(body, dict) and "texts" in body)
    return "TextsRequest" if is_texts else "RerankRequest"  # names of no field, as errors have them in their places


@router.post("/rerank", response_model_exclude_none=True, tags=["text-embeddings-inference"])
async def rerank_either(
    request: Annotated[
        Annotated[RerankRequest, Tag("RerankRequest")] | Annotated[TextsRequest, Tag("TextsRequest")],
        Discriminator(_tell_kind),
    ],
    service: Serving,
) -> RerankResponse | list[Rank]:
    """Ranks `documents` as `/v1/rerank` does, or `texts`, for a list of places and scores."""
    if isinstance(request, RerankRequest):
        return await rerank(request, service)
    engine = service.engine
    texts = engine.check_texts(request.texts, name="texts")
    scores, *_ = await score(engine, engine.check_turns([request.query]), texts, name="texts", split=True)
    return [
        Rank(
            index=i,
            score=float(scores[i]) if request.raw_scores else relevance,
            text=texts[i] if request.return_text else None,
        )
        for i, relevance in rank_documents(texts, scores, engine.ranker.calibration)
    ]


async def _rerank(request: RerankRequest, service: Serving, *, version: str, documents: bool) -> RerankResponse:
    service.engine.check_count(request.documents, name="documents")
    objects = [Document(text=document) if isinstance(document, str) else document for document in request.documents]
    turns = request.collect_turns(system=service.config.system)
    texts = [document.text for document in objects]
    order, tokens, split = await rank(service.engine, turns, texts, top_n=request.top_n)
    meta: dict[str, Any] = {"api_version": {"version": version}}
    if split:
        limit = service.engine.ranker.text.config.label_truncate
        how = f"have more than {limit} tokens and the score of their best passage"
        meta["warnings"] = [f"{split:,} of {len(texts):,} documents {how}"]
    return RerankResponse(
        **build_answer_fields("rerank", model=service.name, tokens=tokens),
        results=[
            Result(
                index=number, relevance_score=relevance, document=objects[number].model_dump() if documents else None
            )
            for number, relevance in order
        ],
        meta=meta,
    )


async def rank(
    engine: Engine, turns: Sequence[str], documents: Sequence[str], *, top_n: int | None = None
) -> tuple[list[tuple[int, float]], int, int]:
    """Ranks documents for a context, long ones by their best passage.

    Returns:
        (position, relevance 0 to 1) of each document, best first; the number of tokens; and of the documents split.

    Raises:
        InputError: a text exceeds the limits.
    """
    documents = engine.check_texts(documents)
    scores, tokens, split = await score(engine, engine.check_turns(turns), documents, name="documents", split=True)
    return rank_documents(documents, scores, engine.ranker.calibration, top_n=top_n), tokens, split


async def score(
    engine: Engine, turns: Sequence[str], documents: Sequence[str], *, name: str, split: bool = False
) -> tuple[Array, int, int]:
    """Scores a context's documents, equal ones once; with `split` a long one is scored by its best passage.

    Returns:
        float32 [documents]; the number of tokens; and of the documents that were split.

    Raises:
        InputError: there are too many tokens; it names the field `name`.
    """
    texts = list(dict.fromkeys(documents))
    text = engine.ranker.text
    with engine.metrics.tokenizing.time():
        context_ids = await engine.tokenize(lambda: text.tokenize_context(turns))
        passages = [[ids] for ids in await engine.tokenize_candidates(texts)]
        length = 0
        for number, (ids,) in enumerate(passages):
            if split and len(ids) >= text.config.label_truncate and not text.config.candidate_rows:
                passages[number] = await engine.tokenize(partial(_read_passages, text, texts[number]))
            if (length := length + sum(map(len, passages[number]))) > engine.limits.tokens:
                break  # `engine.count_tokens` refuses the request below
    candidates = [ids for rows in passages for ids in rows]
    if engine.ranker.model.reads_pairs:
        items = [build_pair_item(context_ids, ids) for ids in candidates]
    else:
        items = [*map(build_candidate_item, candidates), build_context_item(context_ids)]
    positions = [i for i, rows in enumerate(passages) for _ in rows] if len(texts) == len(documents) else []
    tokens = engine.count_tokens(items, name=name, positions=positions)
    first = np.cumsum([0, *(len(rows) for rows in passages[:-1])])

    def finish(jobs: Sequence[Job]) -> list[Array]:
        return [np.maximum.reduceat(_collect_scores(engine.ranker, job.results), first) for job in jobs]

    best_scores = dict(zip(texts, await engine.run(Job(items, finish)), strict=True))
    is_split = {text: len(rows) > 1 for text, rows in zip(texts, passages, strict=True)}
    scores = np.array([best_scores[text] for text in documents], dtype=np.float32)
    return scores, tokens, sum(is_split[text] for text in documents)


def _read_passages(text: TextEncoder, document: str) -> list[list[int]]:
    return text.tokenize_candidates(split_text(document, text, tokens=text.candidate_room), remember=False)


def _collect_scores(ranker: CalibratedRanker, results: Sequence[Any]) -> Array:
    if ranker.model.reads_pairs:
        return np.array(results, dtype=np.float32)
    *vectors, encoded = results
    scores: Array = ranker.encoder.rescore(encoded, vectors)[0]
    return scores
