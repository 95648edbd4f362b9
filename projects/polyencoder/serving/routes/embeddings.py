"""`/v1/embeddings`: OpenAI's contract, for models with one vector for a text."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field

from polyencoder.errors import InputError
from polyencoder.serving import embedding
from polyencoder.serving.routes.common import Serving, Usage, model_name

__all__ = ["router"]

router = APIRouter(tags=["embeddings"])

_INPUT_TYPES: dict[str, embedding.InputType] = {
    "query": "query",
    "document": "document",
    "search_query": "query",  # as Cohere calls them
    "search_document": "document",
}


class EmbeddingsRequest(BaseModel):
    """`input` is text: lists of token ids, which OpenAI takes as well, are of another vocabulary than the model's."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    input: str | list[str]
    input_type: Literal["query", "document", "search_query", "search_document"] = "document"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="That of the model's vectors, or nothing.")


class Embedding(BaseModel):
    """The vector of one text."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class EmbeddingsResponse(BaseModel):
    """Vectors in the order of the texts."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: Usage


@router.post("/v1/embeddings")
async def embeddings(request: EmbeddingsRequest, service: Serving) -> EmbeddingsResponse:
    """A vector for each text; a query's and a document's multiplied are their score."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    found = await embedding.embed(service.engine, texts, input_type=_INPUT_TYPES[request.input_type])
    dim = found.vectors.size(1)
    if request.dimensions not in (None, dim):
        raise InputError(
            f"dimensions is {request.dimensions}, and the model's vectors have {dim}: leave it out",
            argument="dimensions",
        )
    rows = found.vectors.numpy().astype("<f4")
    return EmbeddingsResponse(
        data=[Embedding(index=place, embedding=_shown(row, request.encoding_format)) for place, row in enumerate(rows)],
        model=model_name(service),
        usage=Usage.of(found.tokens),
    )


def _shown(row: np.ndarray, how: str) -> list[float] | str:
    return base64.b64encode(row.tobytes()).decode() if how == "base64" else row.tolist()
