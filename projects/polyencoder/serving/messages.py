"""Messages of a chat as the turns of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field, model_validator

__all__ = ["Asked", "Message", "persona_lines", "turns_of"]

_PERSONA = "your persona: "


class TextPart(BaseModel):
    """A part of a message, as OpenAI's clients may send them."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All that it says."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


def persona_lines(persona: str | Sequence[str] | None) -> list[str]:
    """The lines of a persona as models are trained with them: `your persona: i ski .`"""
    texts = [persona] if isinstance(persona, str) else persona or []
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line if line.startswith(_PERSONA.strip()) else _PERSONA + line for line in lines if line]


def turns_of(messages: Sequence[Message]) -> list[str]:
    """The turns of a context: the persona, which system messages tell, then what was said, oldest first."""
    persona = [one.text for one in messages if one.role in ("system", "developer")]
    said = [one.text for one in messages if one.role in ("user", "assistant")]
    return persona_lines(persona) + said


class Asked(BaseModel):
    """A request with a context."""

    query: str | list[Message] | None = Field(None, description="A text, or the messages of a chat, oldest first.")
    messages: list[Message] | None = Field(None, description="In place of `query`.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Asked:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either query or messages")
        return self

    @property
    def turns(self) -> list[str]:
        """The turns of the context."""
        if isinstance(self.query, str):
            return [self.query]
        return turns_of(self.query or self.messages or [])
