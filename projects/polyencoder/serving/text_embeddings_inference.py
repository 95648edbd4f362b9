"""`/embed`, and `/rerank` with `texts`: the API of Hugging Face's text-embeddings-inference."""

from __future__ import annotations

import json
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Response
from pydantic import BaseModel, Discriminator, Field, Tag

from polyencoder.calibration.probability import ranked
from polyencoder.serving.embeddings import embed, normalized
from polyencoder.serving.messages import Body, KnownFields
from polyencoder.serving.rerank import RerankRequest, RerankResponse, rerank, score
from polyencoder.serving.service import Serving

router = APIRouter(tags=["text-embeddings-inference"])


class EmbedRequest(KnownFields, Body):
    """Texts to encode."""

    inputs: str | Annotated[list[str], Field(fail_fast=True)] = Field(description="One text or several.")
    normalize: bool = Field(True, description="Vectors of length 1; else those whose products are the model's scores.")
    truncate: bool | None = Field(None, description="Ignored: long texts are cut.")
    truncation_direction: str | None = Field(None, description="Ignored.")
    prompt_name: str | None = Field(None, description="`query` for contexts; else texts are candidates.")


class TextsRequest(KnownFields, Body):
    """A text and the texts to rank."""

    query: str = Field(description="The context, a text.")
    texts: Annotated[list[str], Field(fail_fast=True)] = Field(description="What is ranked.")
    raw_scores: bool = Field(False, description="The model's scores in place of numbers from 0 to 1.")
    return_text: bool = Field(False, description="Whether results contain their texts.")
    truncate: bool | None = Field(None, description="Ignored: long texts are split.")
    truncation_direction: str | None = Field(None, description="Ignored.")


class Rank(BaseModel):
    """A text of a ranking."""

    index: int = Field(description="The text's place in the request, from 0.")
    score: float = Field(description="From 0 to 1, as `relevance_score` of `/v1/rerank`, or the model's score.")
    text: str | None = Field(None, description="The text, with `return_text`.")


@router.post("/embed", response_model=list[list[float]])
async def embed_texts(request: EmbedRequest, service: Serving) -> Response:
    """Returns a vector for each text."""
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    vectors, _ = await embed(service.engine, texts, is_query=request.prompt_name == "query", name="inputs")
    rows = normalized(vectors) if request.normalize else vectors
    return Response(await anyio.to_thread.run_sync(lambda: json.dumps(rows.tolist())), media_type="application/json")


def _kind(body: Any) -> str:
    return "TextsRequest" if isinstance(body, TextsRequest) or (isinstance(body, dict) and "texts" in body) else "other"


@router.post("/rerank", response_model_exclude_none=True)
async def rerank_either(
    request: Annotated[
        Annotated[RerankRequest, Tag("other")] | Annotated[TextsRequest, Tag("TextsRequest")], Discriminator(_kind)
    ],
    service: Serving,
) -> RerankResponse | list[Rank]:
    """Ranks `documents` as `/v1/rerank` does, or `texts`, for a list of places and scores."""
    if isinstance(request, RerankRequest):
        return await rerank(request, service)
    engine = service.engine
    texts = engine.texts(request.texts, name="texts")
    scores, *_ = await score(engine, engine.turns([request.query]), texts, name="texts", split=True)
    return [
        Rank(
            index=place,
            score=float(scores[place]) if request.raw_scores else relevance,
            text=texts[place] if request.return_text else None,
        )
        for place, relevance in ranked(texts, scores, engine.ranker.calibration)
    ]
