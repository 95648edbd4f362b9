"""`/v1/embeddings`: OpenAI's embeddings API, for models with one vector per text."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, field_validator

from polyencoder.errors import InputError
from polyencoder.search.contexts import Array
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import CANDIDATE, CONTEXT, candidate, context
from polyencoder.serving.messages import Body, KnownFields, Usage
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Serving

router = APIRouter(tags=["embeddings"])


class EmbeddingsRequest(KnownFields, Body):
    """`input` is text; lists of token ids, which OpenAI also accepts, are refused, as vocabularies differ."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    user: str | None = Field(None, description="Ignored.")
    input: str | Annotated[list[str], Field(fail_fast=True)] = Field(description="One text or several.")
    input_type: Literal["query", "document", "search_query", "search_document"] = Field(
        "document", description="Whether a text is a context or a candidate; the last two are Cohere's names."
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="Of the vectors.")
    dimensions: int | None = Field(None, description="The dimension of the model's vectors, or null.")
    normalize: bool = Field(True, description="Vectors of length 1; else those whose products are the model's scores.")

    @field_validator("input", mode="before")
    @classmethod
    def _no_tokens(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else []
        if any(type(token) is int for one in texts for token in (one if isinstance(one, list) else [one])):
            raise ValueError(
                "has tokens of another model's vocabulary: send texts (LangChain's OpenAIEmbeddings does with "
                "check_embedding_ctx_length=False)"
            )
        return value


class Embedding(BaseModel):
    """The vector of one text."""

    object: str = "embedding"
    index: int = Field(description="The text's place in the request, from 0.")
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class EmbeddingsResponse(BaseModel):
    """Vectors in the order of the texts. OpenAI's clients ignore `meta`."""

    object: str = "list"
    data: list[Embedding]
    model: str = Field(description="The server's model.")
    usage: Usage
    meta: dict[str, Any] = Field(description="`warnings` of texts that were cut.")


@router.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(request: EmbeddingsRequest, service: Serving) -> Response:
    """Returns a vector for each text, normalized, or as the model computes it for dot products as scores."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    is_query = request.input_type in ("query", "search_query")
    vectors, tokens = await embed(service.engine, texts, is_query=is_query)
    dim = vectors.shape[1]
    if request.dimensions not in (None, dim):
        raise InputError(
            f"dimensions is {request.dimensions}, and the model's vectors have {dim}: leave it out",
            argument="dimensions",
        )
    rows = (normalized(vectors) if request.normalize else vectors).astype("<f4")
    meta = {} if is_query else await service.engine.cut_warnings(texts)
    head = EmbeddingsResponse(data=[], model=service.name, usage=Usage.of(tokens), meta=meta)
    is_text = request.encoding_format == "base64"
    body = await anyio.to_thread.run_sync(partial(_json, head, rows, is_text=is_text))
    return Response(body, media_type="application/json")


def _json(response: EmbeddingsResponse, rows: Array, *, is_text: bool) -> bytes:
    """The response with these vectors as JSON, a vector at a time: other threads run between them."""
    fields = response.model_dump(exclude={"data"})
    items = (
        Embedding(index=i, embedding=base64.b64encode(row.tobytes()).decode() if is_text else row.tolist())
        for i, row in enumerate(rows)
    )
    data = ",".join(item.model_dump_json() for item in items)
    return f'{{"data":[{data}],{json.dumps(fields)[1:]}'.encode()


def normalized(vectors: Array) -> Array:
    """Vectors of length 1."""
    lengths: Array = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths.clip(1e-12)


async def embed(engine: Engine, texts: Sequence[str], *, is_query: bool, name: str = "input") -> tuple[Array, int]:
    """Encodes texts as contexts, or as candidates: float32 [texts, dim]; and the number of tokens.

    `name` is the request's field, for errors.

    Raises:
        InputError: the model has no single vector for a context, or a text exceeds the limits.
    """
    ranker = engine.ranker
    if not ranker.model.has_one_vector:
        raise InputError(
            f"the model is a {ranker.model.title}, which has no single vector for a text, as "
            "embeddings need: use /v1/rerank or /v1/search",
            argument="model",
        )
    texts = engine.texts(texts, name=name)
    if is_query:
        for place, one in enumerate(texts):
            engine.turns([one], name=f"{name}.{place}")
    with engine.measured_tokenizing():
        ids = await (engine.query_ids(texts) if is_query else engine.candidate_ids(texts))

    def vectors(jobs: Sequence[Job]) -> list[Array]:
        return [engine.forward.embeddings(CONTEXT if is_query else CANDIDATE, job.results) for job in jobs]

    job = Job([context(one) if is_query else candidate(one) for one in ids], vectors)
    tokens = engine.tokens(job.items, name=name)
    return await engine.run(job), tokens
