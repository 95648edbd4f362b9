"""`PUT` and `DELETE /v1/candidates`: the index, changed while it is searched."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, BeforeValidator, Field, Json, WithJsonSchema

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate, convert_id
from polyencoder.serving.messages import Body, KnownFields
from polyencoder.serving.service import Serving

router = APIRouter(tags=["candidates"])


_ID_SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}
Id = Annotated[str, BeforeValidator(convert_id), Field(min_length=1), WithJsonSchema(_ID_SCHEMA)]
"""An id of a candidate: a text, or a whole number, which becomes a text."""


class NewCandidate(KnownFields):
    """A candidate, as an index has it."""

    id: Id | None = Field(None, description="None: derived from the text and the metadata.")
    text: str = Field(description="What is ranked.")
    metadata: dict[str, Any] | None = Field(None, description="Fields to filter by, with any JSON values.")


class PutRequest(KnownFields, Body):
    """Candidates to add, or to replace those with their ids."""

    candidates: Annotated[list[NewCandidate], Field(fail_fast=True)] = Field(
        description="An id that the index has is replaced."
    )


class DeleteRequest(KnownFields, Body):
    """Candidates to remove."""

    ids: Annotated[list[Id], Field(fail_fast=True)] = Field(description="Unknown ones are no error.")


class ChangeResponse(BaseModel):
    """The index after a change."""

    candidates: int = Field(description="The number of candidates.")


@router.put("/v1/candidates")
async def put(request: PutRequest, service: Serving) -> ChangeResponse:
    """Adds candidates or replaces them: all or none; on disk before the answer. Repeating a request changes nothing."""
    service.engine.check_texts([candidate.text for candidate in request.candidates], name="candidates")
    records = [
        Candidate(candidate.id, candidate.text, candidate.metadata, f"candidates.{number}")
        for number, candidate in enumerate(request.candidates)
    ]
    ids = Counter(record.id for record in records if record.id is not None)
    for id_, times in ids.items():
        if times > 1:
            raise InputError(f"candidates: duplicate id {id_!r:.60}", argument="candidates")
    return ChangeResponse(candidates=await service.writer.change(lambda index: index.put(records)))


@router.delete("/v1/candidates")
async def delete(
    service: Serving,
    request: DeleteRequest | None = None,
    filter: Annotated[Json[Any] | None, Query(description="In place of ids: a filter of metadata, in JSON.")] = None,
) -> ChangeResponse:
    """Removes the candidates of these ids, if they exist, or those that pass a filter: all or none; on disk before the
    answer."""
    if (request is None) == (filter is None):
        raise InputError("give ids in the body, or a filter in the address", argument="ids")
    if filter is not None:
        service.engine.check_filter(filter)
        return ChangeResponse(candidates=await service.writer.change(lambda index: index.remove_where(filter)))
    assert request is not None
    ids, limit = request.ids, service.config.limits.documents
    if not 1 <= len(ids) <= limit:
        raise InputError(f"ids has {len(ids):,} ids; it must have 1 to {limit:,}", argument="ids")
    return ChangeResponse(candidates=await service.writer.change(lambda index: index.remove(ids, missing_ok=True)))


@router.delete("/v1/candidates/{id:path}")
async def delete_one(id_: Annotated[str, Path(alias="id", min_length=1)], service: Serving) -> ChangeResponse:
    """Removes one candidate, if it exists."""
    return await delete(service, DeleteRequest(ids=[id_]))
