"""`PUT` and `DELETE /v1/candidates`: the index, changed while it is searched."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from polyencoder.index.base import Candidate
from polyencoder.serving.messages import Body, KnownFields
from polyencoder.serving.routes.common import Serving

__all__ = ["router"]

router = APIRouter(tags=["candidates"])


class NewCandidate(KnownFields):
    """A candidate, as an index has it."""

    id: str | None = Field(None, min_length=1, description="None for one made of the text and the metadata.")
    text: str
    metadata: dict[str, Any] | None = None


class PutRequest(KnownFields, Body):
    """Candidates to be added, or to take the place of those with their ids."""

    candidates: list[NewCandidate]


class DeleteRequest(KnownFields, Body):
    """Candidates to be removed."""

    ids: list[str]


class Changed(BaseModel):
    """The index after a change."""

    candidates: int = Field(description="How many there are.")


@router.put("/v1/candidates")
async def put(request: PutRequest, service: Serving) -> Changed:
    """Add candidates or replace them: all or none; on disk before the answer. The same again changes nothing."""
    records = [
        Candidate(one.id, one.text, one.metadata, f"candidates.{place}") for place, one in enumerate(request.candidates)
    ]
    return Changed(candidates=await service.writer.put(records))


@router.delete("/v1/candidates")
async def delete(request: DeleteRequest, service: Serving) -> Changed:
    """Remove those candidates of these ids that there are: all or none; on disk before the answer."""
    return Changed(candidates=await service.writer.remove(request.ids))


@router.delete("/v1/candidates/{id_:path}")
async def delete_one(id_: str, service: Serving) -> Changed:
    """Remove one candidate, if it is there."""
    return Changed(candidates=await service.writer.remove([id_]))
