"""Request and response schemas shared by several routes, and conversion of chat messages to turns."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from polyencoder.checks import find_json_problem
from polyencoder.errors import InputError, suggest_similar
from polyencoder.settings.fields import read_docstrings
from polyencoder.text.dialogue import (
    SPEAKERS,
    SystemMessages,
    convert_messages,
    count_system_messages,
    is_of_tools,
    warn_of_system_messages,
)


def _refuse_boolean(value: Any) -> Any:
    """Refuses true and false, which pydantic takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, not a number")
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_refuse_boolean)]
"""A whole number from 1 up."""


Texts = Annotated[list[str], Field(fail_fast=True)]
"""Texts; the first invalid text is the error."""


MAX_MESSAGES = 1000
"""The most messages of a dialogue, and parts of a message."""


class Body(BaseModel):
    """A request body; checks that its texts can be encoded and its nesting is not too deep."""

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, value: Any) -> Any:
        for name in ("messages", "query") if isinstance(value, dict) else ():
            if isinstance(messages := value.get(name), list) and len(messages) > MAX_MESSAGES:
                raise InputError(
                    f"{name} has {len(messages):,} messages; it must have at most {MAX_MESSAGES:,}", argument=name
                )
        if invalid := find_json_problem(value):
            path, problem = invalid
            raise InputError(f"{path}: {problem}" if path else problem, argument=path or None)
        return value


class KnownFields(BaseModel):
    """A part of a request that refuses unknown fields and suggests known ones."""

    model_config = ConfigDict(extra="forbid")  # of the schema in /docs; the error below comes first

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        for name in value if isinstance(value, dict) else ():
            if name not in cls.model_fields:
                hint = suggest_similar(str(name), cls.model_fields)
                raise InputError(f"{name!r:.60} is not a field of this request{hint}", argument=f"{name:.60}")
        return value


def make_fields(cls: type, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass or NamedTuple for `pydantic.create_model`; their docstrings describe them."""
    hints = get_type_hints(cls)
    words = read_docstrings(cls)
    if dataclasses.is_dataclass(cls):
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, default in defaults.items():
            if default is dataclasses.MISSING:  # answers leave out what is None
                defaults[name] = None if type(None) in get_args(hints[name]) else ...
    else:
        defaults = dict.fromkeys(cls._fields, ...) | cls._field_defaults  # type: ignore[attr-defined]
    return {
        name: (hints[name], Field(default, description=words.get(name) or None))
        for name, default in defaults.items()
        if name not in without
    }


class TextPart(BaseModel):
    """A part of a message, as OpenAI's clients may send."""

    type: Literal["text"] = Field(description="No other kind is read.")
    text: str = Field(description="The text of this part.")


class Message(BaseModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = Field(
        description="Messages of tools are not read, those of `system` and `developer` only as a persona."
    )
    content: str | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        description="A text, or the parts of one, `{type: text, text}`; a message that only calls tools needs none."
    )
    tool_calls: list[dict[str, Any]] | None = Field(None, description="Not read.")
    function_call: dict[str, Any] | None = Field(None, description="Not read.")

    @model_validator(mode="before")
    @classmethod
    def _drop_tool_calls(cls, value: Any) -> Any:
        """Calls have no text, and of Cohere's clients their answers are documents."""
        return {**value, "content": ""} if isinstance(value, dict) and is_of_tools(value) else value


Messages = Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)]
"""A dialogue, oldest message first."""


def read_turns(messages: Sequence[Message], *, name: str = "messages", system: SystemMessages) -> list[str]:
    """The turns of a context, oldest first; `convert_messages` says what system messages become.

    Raises InputError, which names the field `name`, if the last message has no text, or all messages are persona.
    """
    spoken = [message for part in messages if not is_of_tools(message := part.model_dump())]
    turns = convert_messages(spoken, name=name, system=system)
    if system == "leave-out" and count_system_messages(spoken):
        warn_of_system_messages("system 'persona' reads them")
    if not any(message["role"] in SPEAKERS for message in spoken):
        raise InputError(f"{name} has no message of the user; give at least one", argument=name)
    if not turns[-1].strip():
        raise InputError(f"{name}: the last message has no text", argument=name)
    return turns


class ContextRequest(Body):
    """A request with a context."""

    query: str | Messages | None = Field(None, description="A text, or the messages of a chat, oldest first.")
    messages: Messages | None = Field(None, description="Instead of `query`.")

    @model_validator(mode="after")
    def _check_either(self) -> ContextRequest:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either query or messages")
        return self

    def collect_turns(self, *, system: SystemMessages) -> list[str]:
        """The turns of the context; errors as in `read_turns`."""
        if isinstance(self.query, str):
            return [self.query]
        name, messages = ("messages", self.messages) if self.query is None else ("query", self.query)
        return read_turns(messages or [], name=name, system=system)


class Usage(BaseModel):
    """The tokens of a request."""

    prompt_tokens: int = Field(description="Tokens that the model read.")
    total_tokens: int = Field(description="The same number.")

    @classmethod
    def from_tokens(cls, tokens: int) -> Usage:
        return cls(prompt_tokens=tokens, total_tokens=tokens)


class Answer(BaseModel):
    """The fields that answers of several contracts share."""

    id: str = Field(description="New for each answer.")
    model: str = Field(description="The server's model.")
    usage: Usage


def build_answer_fields(kind: str, *, model: str, tokens: int) -> dict[str, Any]:
    """The fields of an `Answer`, with a new id that begins with `kind`."""
    return {"id": f"{kind}-{uuid.uuid4().hex}", "model": model, "usage": Usage.from_tokens(tokens)}
