"""`/v1/embeddings`: OpenAI's contract, for models with one vector for a text."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field
from torch.nn.functional import normalize

from polyencoder.errors import InputError
from polyencoder.serving import embedding
from polyencoder.serving.messages import Body
from polyencoder.serving.routes.common import Serving, Usage, model_name

__all__ = ["router"]

router = APIRouter(tags=["embeddings"])

_INPUT_TYPES: dict[str, embedding.InputType] = {
    "query": "query",
    "document": "document",
    "search_query": "query",  # as Cohere calls them
    "search_document": "document",
}


class EmbeddingsRequest(Body):
    """`input` is text: lists of token ids, which OpenAI takes as well, are of another vocabulary than the model's."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    input: str | list[str]
    input_type: Literal["query", "document", "search_query", "search_document"] = "document"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="That of the model's vectors, or nothing.")
    normalize: bool = Field(True, description="Vectors of length 1; else those whose products are the model's scores.")


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
    """A vector of length 1 for each text, or of the model's length, with which dot products are the model's scores."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    found = await embedding.embed(service.engine, texts, input_type=_INPUT_TYPES[request.input_type])
    dim = found.vectors.size(1)
    if request.dimensions not in (None, dim):
        raise InputError(
            f"dimensions is {request.dimensions}, and the model's vectors have {dim}: leave it out",
            argument="dimensions",
        )
    vectors = normalize(found.vectors, dim=1) if request.normalize else found.vectors
    rows = vectors.numpy().astype("<f4")
    return EmbeddingsResponse(
        data=[Embedding(index=place, embedding=_shown(row, request.encoding_format)) for place, row in enumerate(rows)],
        model=model_name(service),
        usage=Usage.of(found.tokens),
    )


def _shown(row: np.ndarray, how: str) -> list[float] | str:
    return base64.b64encode(row.tobytes()).decode() if how == "base64" else row.tolist()
