"""`/v2/embed`: Cohere's embeddings API, for models with one vector per text."""

from __future__ import annotations

import base64
import uuid
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter
from pydantic import BaseModel, Field

from polyencoder.errors import InputError
from polyencoder.search.contexts import Array
from polyencoder.serving.embeddings import embed, normalized
from polyencoder.serving.messages import Body, KnownFields
from polyencoder.serving.service import Serving

router = APIRouter(tags=["embeddings"])


class CohereEmbedRequest(KnownFields, Body):
    """Texts to encode. Images are refused, as unknown fields are."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    texts: Annotated[list[str], Field(fail_fast=True)] = Field(description="One text or several.")
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


@router.post("/v2/embed")
async def cohere_embed(request: CohereEmbedRequest, service: Serving) -> CohereEmbedResponse:
    """Returns a vector of length 1 for each text."""
    is_query = request.input_type == "search_query"
    vectors, tokens = await embed(service.engine, request.texts, is_query=is_query, name="texts")
    if request.output_dimension not in (None, dim := vectors.shape[1]):
        raise InputError(
            f"output_dimension is {request.output_dimension}, and the model's vectors have {dim}: leave it out",
            argument="output_dimension",
        )
    rows = normalized(vectors).astype("<f4")
    warnings = {} if is_query else await service.engine.cut_warnings(request.texts)
    return CohereEmbedResponse(
        id=f"embed-{uuid.uuid4().hex}",
        embeddings={kind: await anyio.to_thread.run_sync(_written, rows, kind) for kind in request.embedding_types},
        texts=request.texts,
        meta={"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}, **warnings},
    )


def _written(rows: Array, kind: str) -> list[Any]:
    return rows.tolist() if kind == "float" else [base64.b64encode(row.tobytes()).decode() for row in rows]
