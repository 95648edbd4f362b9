"""`/v1/chat`: the best reply to a dialogue, which the request contains, or a session on the server."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
from fastapi import APIRouter
from pydantic import Field, model_validator

from polyencoder.serving.config import no_index
from polyencoder.serving.messages import Message, turns_of
from polyencoder.serving.search import SearchParameters, SearchResponse, search_fields
from polyencoder.serving.service import Serving
from polyencoder.text.dialogue import as_persona

router = APIRouter(tags=["chat"])

_NO_ANSWER = "I have no good answer to that."


class ChatRequest(SearchParameters):
    """Either `messages`, without a session, or `message`, which begins or continues a session."""

    messages: list[Message] | None = Field(None, description="The whole dialogue, the user's last message last.")
    message: str | None = Field(None, description="The user's message in a session.")
    session: str | None = Field(None, max_length=64, description="From an earlier answer; omit it to begin a session.")
    persona: str | list[str] | None = Field(None, description="Lines of a persona, for `messages` or a new session.")

    @model_validator(mode="after")
    def _messages_or_session(self) -> ChatRequest:
        if (self.messages is None) == (self.message is None):
            raise ValueError("give either messages, or message for a session")
        if self.session is not None and (self.messages is not None or self.persona is not None):
            raise ValueError("a session has its messages and its persona already: give message alone")
        if self.messages is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("the last message must be the user's")
        return self


class ChatResponse(SearchResponse):
    """A reply and its alternatives."""

    reply: str = Field(description="The best candidate's text, or that there is no good answer.")
    answered: bool = Field(description="Whether a good answer was found; otherwise the reply says that there is none.")
    session: str | None = Field(None, description="To send with the next message.")


@router.post("/v1/chat", response_model_exclude_none=True)
async def chat(request: ChatRequest, service: Serving) -> ChatResponse:
    """Returns the best reply that does not repeat an earlier turn.

    404 for an unknown session, 409 if the session has changed since it was read.
    """
    in_thread = anyio.to_thread.run_sync
    session = sessions = None
    persona = as_persona(request.persona)
    if request.message is None:
        turns = [*persona, *turns_of(request.messages or [])]
    else:
        service.engine.turns([request.message], name="message")
        if (sessions := service.sessions) is None:
            raise no_index("chat with")
        read = partial(sessions.read, request.session or "")
        session = sessions.new(persona) if request.session is None else await in_thread(read)
        turns = session.context(request.message, most_characters=service.engine.limits.characters)
    name = "messages" if session is None else "message"
    name = f"{name} and persona" if persona or (session and session.persona) else name
    hits, fields = await search_fields(service, turns, request, kind="chat", name=name)
    reply = hits[0].text if hits else service.config.no_answer or _NO_ANSWER
    if session is not None and sessions is not None and request.message is not None:
        await in_thread(partial(sessions.add_turns, session, request.message, reply))
    return ChatResponse(**fields, reply=reply, answered=bool(hits), session=None if session is None else session.id)
