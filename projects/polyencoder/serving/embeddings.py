"""`/v1/embeddings`, `/v2/embed` and `/embed`: the APIs of OpenAI, Cohere and Hugging Face's text-embeddings-inference.

They need a model with one vector per text.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, field_validator

from polyencoder.errors import InputError
from polyencoder.search.contexts import Array
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import build_candidate_item, build_context_item
from polyencoder.serving.messages import Body, KnownFields, Texts, Usage
from polyencoder.serving.model_thread import Job
from polyencoder.serving.service import Serving

router = APIRouter(tags=["embeddings"])


class EmbeddingsRequest(KnownFields, Body):
    """`input` is text; lists of token ids, which OpenAI also accepts, are refused, as vocabularies differ."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    user: str | None = Field(None, description="Ignored.")
    input: str | Texts = Field(description="One text or several.")
    input_type: Literal["query", "document", "search_query", "search_document"] = Field(
        "document", description="Whether a text is a context or a candidate; the last two are Cohere's names."
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="Of the vectors.")
    dimensions: int | None = Field(None, description="The dimension of the model's vectors, or null.")
    normalize: bool = Field(True, description="Vectors of length 1; else those whose products are the model's scores.")

    @field_validator("input", mode="before")
    @classmethod
    def _refuse_tokens(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else []
        if any(type(token) is int for part in texts for token in (part if isinstance(part, list) else [part])):
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


class CohereEmbedRequest(KnownFields, Body):
    """Texts to encode. Images are refused, as unknown fields are."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    texts: Texts = Field(description="One text or several.")
    input_type: Literal["search_document", "search_query", "classification", "clustering"] = Field(
        "search_document", description="Texts of `search_query` are contexts, all others candidates."
    )
    embedding_types: list[Literal["float", "base64"]] = Field(["float"], description="The forms of the vectors.")
    output_dimension: int | None = Field(None, description="The dimension of the model's vectors, or null.")
    truncate: str | None = Field(None, description="Ignored: long texts are cut at their end.")
    max_tokens: int | None = Field(None, description="Ignored.")
    priority: int | None = Field(None, description="Ignored.")


class CohereEmbedResponse(BaseModel):
    """Vectors of length 1, in the order of the texts."""

    id: str = Field(description="New for each answer.")
    embeddings: dict[str, list[list[float]] | list[str]] = Field(
        description="For each of `embedding_types`: numbers, or base64 of little-endian float32."
    )
    texts: list[str] = Field(description="As they were sent.")
    meta: dict[str, Any] = Field(description="`api_version`, `billed_units`, `warnings` of texts that were cut.")


class EmbedRequest(KnownFields, Body):
    """Texts to encode, in the form of text-embeddings-inference."""

    inputs: str | Texts = Field(description="One text or several.")
    normalize: bool = Field(True, description="Vectors of length 1; else those whose products are the model's scores.")
    truncate: bool | None = Field(None, description="Ignored: long texts are cut.")
    truncation_direction: str | None = Field(None, description="Ignored.")
    prompt_name: str | None = Field(None, description="`query` for contexts; else texts are candidates.")


@router.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(request: EmbeddingsRequest, service: Serving) -> Response:
    """Returns a vector for each text, normalized, or as the model computes it for dot products as scores."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    _check_dim(service.engine, request.dimensions, name="dimensions")
    is_query = request.input_type in ("query", "search_query")
    rows, tokens, warnings = await embed(service.engine, texts, is_query=is_query, normalize=request.normalize)
    head = EmbeddingsResponse(data=[], model=service.name, usage=Usage.from_tokens(tokens), meta=warnings)
    body = await anyio.to_thread.run_sync(partial(_format_json, head, rows, kind=request.encoding_format))
    return Response(body, media_type="application/json")


@router.post("/v2/embed")
async def cohere_embed(request: CohereEmbedRequest, service: Serving) -> CohereEmbedResponse:
    """Returns a vector of length 1 for each text."""
    _check_dim(service.engine, request.output_dimension, name="output_dimension")
    is_query = request.input_type == "search_query"
    rows, tokens, warnings = await embed(service.engine, request.texts, is_query=is_query, name="texts")

    def write(kind: str) -> list[Any]:
        return [_format_vector(row, kind) for row in rows]

    return CohereEmbedResponse(
        id=f"embed-{uuid.uuid4().hex}",
        embeddings={
            kind: await anyio.to_thread.run_sync(write, kind) for kind in dict.fromkeys(request.embedding_types)
        },
        texts=request.texts,
        meta={"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}, **warnings},
    )


@router.post("/embed", response_model=list[list[float]], tags=["text-embeddings-inference"])
async def embed_texts(request: EmbedRequest, service: Serving) -> Response:
    """Returns a vector for each text."""
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    is_query = request.prompt_name == "query"
    rows, *_ = await embed(service.engine, texts, is_query=is_query, normalize=request.normalize, name="inputs")
    return Response(await anyio.to_thread.run_sync(lambda: json.dumps(rows.tolist())), media_type="application/json")


def _format_json(response: EmbeddingsResponse, rows: Array, *, kind: str) -> bytes:
    """The response with these vectors as JSON, a vector at a time: other threads run between them."""
    fields = response.model_dump(exclude={"data"})
    items = (Embedding(index=i, embedding=_format_vector(row, kind)) for i, row in enumerate(rows))
    data = ",".join(item.model_dump_json() for item in items)
    return f'{{"data":[{data}],{json.dumps(fields)[1:]}'.encode()


def _format_vector(row: Array, kind: str) -> Any:
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if kind == "base64" else row.tolist()


def _check_dim(engine: Engine, dim: int | None, *, name: str) -> None:
    """Raises InputError if a request asks for vectors that the model does not have."""
    model = engine.ranker.model
    if model.has_one_vector and dim not in (None, model.dim):
        raise InputError(f"{name} is {dim}, and the model's vectors have {model.dim}: leave it out", argument=name)


async def embed(
    engine: Engine, texts: Sequence[str], *, is_query: bool, normalize: bool = True, name: str = "input"
) -> tuple[Array, int, dict[str, list[str]]]:
    """Encodes texts as contexts, or as candidates. `name` is the request's field, for errors.

    Returns:
        float32 [texts, dim]; the number of tokens; and `warnings` for an answer's `meta`, empty if no text was cut.

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
    texts = engine.check_texts(texts, name=name)
    if is_query:
        for number, text in enumerate(texts):
            engine.check_turns([text], name=f"{name}.{number}")
    with engine.metrics.tokenizing.time():
        ids = await (engine.tokenize_queries(texts) if is_query else engine.tokenize_candidates(texts))

    job = Job(
        [build_context_item(row) if is_query else build_candidate_item(row) for row in ids],
        lambda jobs: [job.results for job in jobs],
    )
    tokens = engine.count_tokens(job.items, name=name)
    encoded = await engine.run(job)
    vectors = np.stack([item.context_vectors[0] if is_query else item.vector for item in encoded])
    warnings = {} if is_query else await engine.build_cut_warnings(texts, ids)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12) if normalize else 1
    return vectors / lengths, tokens, warnings
