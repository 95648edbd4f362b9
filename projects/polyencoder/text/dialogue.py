"""Converts contexts (a text, turns, or chat messages) to turns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeGuard

from polyencoder.checks import check_list, check_text, format_value, is_blank
from polyencoder.errors import InputError

SystemMessages = Literal["leave-out", "persona"]
"""The use of a chat's system messages. A prompt tells the model how to answer: it is no turn of the dialogue."""
PERSONA = "your persona: "
SYSTEM, SPEAKERS = ("system", "developer"), ("user", "assistant")
TOOLS = ("tool", "function")
CALLS = ("tool_calls", "function_call")


def check_context(name: str, value: Any, *, system: SystemMessages = "leave-out") -> list[str]:
    """The turns of a context: a text, turns or messages. InputError if all are empty."""
    if all(map(is_blank, turns := to_turns(name, value, system=system))):
        raise InputError(f"{name} is empty: it has no text in any of its turns")
    return turns


def to_turns(name: str, value: Any, *, system: SystemMessages = "leave-out") -> list[str]:
    """The turns of a context, which may be empty. InputError unless it is a text, turns or messages."""
    if isinstance(value, str):
        return [check_text(name, value)]
    if are_messages(items := check_list(name, value, of="turns or messages, or one text")):
        return convert_messages(items, name=name, system=system)
    return [check_text(f"{name}, turn {number}", turn) for number, turn in enumerate(items)]


def check_contexts(values: Any, *, name: str = "context") -> list[list[str]]:
    """A list of contexts, each as a list of turns. InputError names an invalid one."""
    items = check_list(f"{name}s", values, of=f"{name}s, each a text or a list of turns")
    turns = [check_context(f"{name} {number}", value) for number, value in enumerate(items)]
    if any(map(count_system_messages, items)):
        warn_of_system_messages("as a persona, their lines are turns that begin with 'your persona: '")
    return turns


@cache
def warn_of_system_messages(instead: str) -> None:
    """Warns, once in a process, that system messages of contexts are left out, and says what to do `instead`."""
    logging.getLogger(__name__).warning(f"the system messages of contexts are left out ({instead})")


def are_messages(chat: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list of messages, `{"role": ..., "content": ...}`."""
    return isinstance(chat, Sequence) and not isinstance(chat, str) and any(isinstance(turn, Mapping) for turn in chat)


def convert_messages(
    messages: Sequence[Any], *, name: str = "messages", system: SystemMessages = "leave-out"
) -> list[str]:
    """Converts chat messages to turns, oldest first.

    What tools answered is no turn, and neither is an assistant's message that only calls them.

    Args:
        messages: each `{"role": ..., "content": ...}`; the content is a text, or OpenAI's list of parts with texts.
        name: what error messages call them.
        system: `persona`: lines of system messages are a persona, before the dialogue; else they are left out.

    Raises:
        InputError: one of them is no such message.
    """
    persona: list[str] = []
    spoken: list[str] = []
    for number, message in enumerate(messages):
        where = f"{name}, message {number}"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in (*SYSTEM, *SPEAKERS, *TOOLS):
            raise InputError(
                f"{where} is {format_value(message)}; it must be {{'role': ..., 'content': ...}} with one of the roles "
                f"{', '.join((*SYSTEM, *SPEAKERS, *TOOLS))}"
            )
        if is_of_tools(message):
            continue
        (persona if role in SYSTEM else spoken).append(_read_content(message.get("content"), where=where))
    return [*format_persona(persona if system == "persona" else None), *spoken]


def count_system_messages(chat: Any) -> int:
    """The number of system messages of a chat; 0 for another value."""
    return sum(isinstance(turn, Mapping) and turn.get("role") in SYSTEM for turn in chat) if are_messages(chat) else 0


def is_of_tools(message: Mapping[str, Any]) -> bool:
    """Whether a message is the answer of a tool, or only calls tools."""
    return message.get("role") in TOOLS or (any(map(message.get, CALLS)) and _is_silent(message.get("content")))


def format_persona(persona: str | Sequence[str] | None) -> list[str]:
    """Formats persona lines: `your persona: i ski .`"""
    texts = [persona] if isinstance(persona, str) else persona or []
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line if line.startswith(PERSONA.strip()) else PERSONA + line for line in lines if line]


def _is_silent(content: Any) -> bool:
    """Whether a content is missing or blank; some models write a line break before they call a tool."""
    if isinstance(content, list):
        return all(
            isinstance(part, Mapping) and part.get("type") == "text" and _is_silent(part.get("text"))
            for part in content
        )
    return content is None or (isinstance(content, str) and is_blank(content))


def _read_content(content: Any, *, where: str) -> str:
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise InputError(
                    f"{where}, content is a list with {format_value(part)}: leave out all but texts, "
                    "{'type': 'text', 'text': ...}"
                )
        content = "\n".join(check_text(f"{where}, content", part.get("text")) for part in content)
    return check_text(f"{where}, content", content)
