"""`/v1/search`: the best candidates of the index."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from polyencoder.index.base import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.serving.messages import Asked, Body, KnownFields
from polyencoder.serving.routes.common import Serving, Usage, model_name, new_id

__all__ = ["SearchResult", "SearchSettings", "router", "shown"]

router = APIRouter(tags=["search"])


class SearchSettings(KnownFields, Body):
    """How the index is searched, as `polyencoder search` has it. A field that is not known is an error."""

    model: str | None = Field(None, description="Ignored: a server has one model.")
    top_k: Annotated[int, Field(ge=1)] = 10
    filter: dict[str, Any] | None = Field(None, description="Fields of the metadata and their values.")
    exactness: Literal["exact", "certified", "approximate"] | None = None
    effort: Annotated[int, Field(ge=1)] | None = None
    list_length: Annotated[int, Field(ge=1)] | None = None
    min_probability: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = None
    keep_turns: bool = False

    @property
    def options(self) -> SearchOptions:
        """The same for the index."""
        return SearchOptions(
            top_k=self.top_k,
            filter=self.filter,
            exactness=self.exactness,
            effort=self.effort,
            list_length=self.list_length,
        )


class SearchRequest(Asked, SearchSettings):
    """What is looked for, and how."""


class SearchResult(BaseModel):
    """A candidate that was found."""

    id: str
    text: str
    metadata: dict[str, Any] | None = None
    score: float
    rerank_score: float | None = None
    probability: float | None = None
    found: Literal["exact", "certified", "approximate"]


class SearchResponse(BaseModel):
    """Candidates in order, best first, and the milliseconds of each step."""

    id: str
    model: str
    usage: Usage
    results: list[SearchResult]
    milliseconds: dict[str, float]


def shown(hits: list[Hit]) -> list[SearchResult]:
    """Hits as answers have them."""
    return [SearchResult(**hit._asdict()) for hit in hits]


@router.post("/v1/search", response_model_exclude_none=True)
async def search(request: SearchRequest, service: Serving) -> SearchResponse:
    """The best candidates of the index for a context, best first."""
    found = await service.search(
        request.turns,
        request.options,
        min_probability=request.min_probability,
        keep_turns=request.keep_turns,
    )
    return SearchResponse(
        id=new_id("search"),
        model=model_name(service),
        usage=Usage.of(found.tokens),
        results=shown(found.hits),
        milliseconds=found.milliseconds,
    )
