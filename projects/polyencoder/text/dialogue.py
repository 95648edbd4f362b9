"""Contexts as callers give them, a text, a list of turns or the messages of a chat, made into turns: the one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from polyencoder.checks import checked_list, checked_text, shown
from polyencoder.errors import InputError

__all__ = ["are_messages", "as_persona", "checked_context", "checked_contexts", "turns_of_messages"]

PERSONA = "your persona: "
SYSTEM, SPEAKERS = ("system", "developer"), ("user", "assistant")


def checked_context(name: str, value: Any) -> list[str]:
    """The turns of a context: one text, a list of turns or of messages, with a word in at least one. Or InputError."""
    if isinstance(value, str):
        turns = [checked_text(name, value)]
    elif are_messages(items := checked_list(name, value, of="turns or messages, or one text")):
        turns = turns_of_messages(items, name=name)
    else:
        turns = [checked_text(f"{name}, turn {place}", turn) for place, turn in enumerate(items)]
    if not any(turn.strip() for turn in turns):
        raise InputError(f"{name} is empty: it has no text in any of its turns")
    return turns


def checked_contexts(values: Any, *, name: str = "context") -> list[list[str]]:
    """A list of contexts, each as a list of turns. Raises InputError that names the one that cannot be used."""
    some = checked_list(f"{name}s", values, of=f"{name}s, each a text or a list of turns")
    return [checked_context(f"{name} {place}", value) for place, value in enumerate(some)]


def are_messages(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list of messages, `{"role": ..., "content": ...}`, rather than of texts."""
    return isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(one, Mapping) for one in value)


def turns_of_messages(messages: Sequence[Any], *, name: str = "messages") -> list[str]:
    """The turns of a chat: the persona, which system messages describe, then what was said, oldest first.

    Args:
        messages: each `{"role": ..., "content": ...}`; the content is a text, or OpenAI's list of parts with texts.
        name: what error messages call them.

    Raises:
        InputError: one of them is no such message.
    """
    persona: list[str] = []
    said: list[str] = []
    for place, message in enumerate(messages):
        where = f"{name}, message {place}"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in (*SYSTEM, *SPEAKERS):
            raise InputError(
                f"{where} is {shown(message)}; it must be {{'role': ..., 'content': ...}} with one of the roles "
                f"{', '.join((*SYSTEM, *SPEAKERS))}"
            )
        (persona if role in SYSTEM else said).append(_content(message.get("content"), where=where))
    return [*as_persona(persona), *said]


def as_persona(persona: str | Sequence[str] | None) -> list[str]:
    """The lines of a persona as models are trained with them: `your persona: i ski .`"""
    texts = [persona] if isinstance(persona, str) else persona or []
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line if line.startswith(PERSONA.strip()) else PERSONA + line for line in lines if line]


def _content(content: Any, *, where: str) -> str:
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "\n".join(checked_text(f"{where}, content", part.get("text")) for part in content)
    return checked_text(f"{where}, content", content)
