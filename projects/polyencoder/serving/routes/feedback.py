"""`/v1/feedback`: what somebody says of a reply."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from polyencoder.errors import ConfigError
from polyencoder.serving.messages import Message, persona_lines, turns_of
from polyencoder.serving.routes.common import Serving

__all__ = ["router"]

router = APIRouter(tags=["chat"])


class FeedbackRequest(BaseModel):
    """A dialogue, a reply to it, and whether it is a good one."""

    model_config = ConfigDict(extra="forbid")

    messages: list[Message] = Field(min_length=1)
    persona: str | list[str] | None = None
    response: str
    candidates: list[str] = Field([], description="That it was chosen from.")
    good: bool


@router.post("/v1/feedback")
async def give_feedback(request: FeedbackRequest, service: Serving) -> dict[str, str]:
    """Keep it in the server's file of feedback."""
    if service.feedback is None:
        raise ConfigError("this server keeps no feedback; it was started without a file for it", argument="feedback")
    turns = service.engine.turns([*persona_lines(request.persona), *turns_of(request.messages)], name="messages")
    texts = service.engine.texts([request.response, *request.candidates], name="candidates")
    write = partial(service.feedback.write, turns, texts[0], candidates=texts[1:], good=request.good)
    await anyio.to_thread.run_sync(write)
    return {"status": "kept"}
