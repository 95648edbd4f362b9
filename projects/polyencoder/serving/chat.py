"""`/v1/chat`: the best reply to a dialogue, which the request contains."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field, field_validator

from polyencoder.serving.config import NO_ANSWER
from polyencoder.serving.messages import Message, Messages, turns_of
from polyencoder.serving.search import SearchParameters, SearchResponse, search_fields
from polyencoder.serving.service import Serving

router = APIRouter(tags=["chat"])


class ChatRequest(SearchParameters):
    """A dialogue and the settings of the search for its reply. The server stores nothing."""

    messages: Messages = Field(description="The whole dialogue, the user's last message last.")

    @field_validator("messages")
    @classmethod
    def _the_user_is_last(cls, messages: list[Message]) -> list[Message]:
        if not messages or messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        return messages


class ChatResponse(SearchResponse):
    """A reply and its alternatives."""

    reply: str = Field(description="The best candidate's text, or that there is no good answer.")
    answered: bool = Field(description="Whether a good answer was found; otherwise the reply says that there is none.")


@router.post("/v1/chat", response_model_exclude_none=True)
async def chat(request: ChatRequest, service: Serving) -> ChatResponse:
    """Returns the best reply that does not repeat an earlier turn."""
    turns = turns_of(request.messages, system=service.config.system)
    hits, fields = await search_fields(
        service, turns, request, answers=service.chat_answers, kind="chat", name="messages"
    )
    reply = hits[0].text if hits else service.config.no_answer or NO_ANSWER
    return ChatResponse(**fields, reply=reply, answered=bool(hits))
