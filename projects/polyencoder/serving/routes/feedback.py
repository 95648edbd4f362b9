"""`/v1/feedback`: what somebody says of a reply."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
from fastapi import APIRouter
from pydantic import Field

from polyencoder.errors import ConfigError
from polyencoder.serving.messages import Body, KnownFields, Message, turns_of
from polyencoder.serving.routes.common import Serving
from polyencoder.text.dialogue import as_persona

__all__ = ["router"]

router = APIRouter(tags=["chat"])


class FeedbackRequest(KnownFields, Body):
    """A dialogue, a reply to it, and whether it is a good one."""

    messages: list[Message] = Field(min_length=1)
    persona: str | list[str] | None = None
    response: str
    candidates: list[str] = Field([], description="That it was chosen from.")
    good: bool


@router.post("/v1/feedback")
async def give_feedback(request: FeedbackRequest, service: Serving) -> dict[str, str]:
    """Keep it in the server's file of feedback."""
    if service.feedback is None:
        raise ConfigError(
            "this server keeps no feedback: start it with `polyencoder serve --feedback FILE`", argument="feedback"
        )
    turns = service.engine.turns([*as_persona(request.persona), *turns_of(request.messages)], name="messages")
    (response,) = service.engine.texts([request.response], name="response")
    candidates = service.engine.texts(request.candidates, name="candidates") if request.candidates else []
    write = partial(service.feedback.write, turns, response, candidates=candidates, good=request.good)
    await anyio.to_thread.run_sync(write)
    return {"status": "kept"}
