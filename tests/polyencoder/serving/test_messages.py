"""Schemas of requests: what they take, and what they say of fields and texts that they do not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from polyencoder.errors import InputError
from polyencoder.serving.messages import Asked, Body, KnownFields, Message, Usage, answer_fields, read_turns


class Request(KnownFields, Body):
    top_n: int = 1
    documents: list[str] = []  # noqa: RUF012 - pydantic copies it


def test_unknown_fields_are_errors_with_a_suggestion():
    assert Request.model_validate({"top_n": 3}).top_n == 3
    with pytest.raises(ValidationError, match="'top_m' is not a field of this request; did you mean top_n"):
        Request.model_validate({"top_m": 3})
    with pytest.raises(ValidationError, match="'x' is not a field of this request; it must be one of top_n, documents"):
        Request.model_validate({"x": 3})


def test_a_text_that_cannot_be_encoded_is_named():
    with pytest.raises(ValidationError, match="documents.1: character 1 of .* is half of one"):
        Request.model_validate({"documents": ["a", "\ud800"]})


def test_messages_become_turns_and_those_of_the_system_if_asked_a_persona():
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    messages = [
        Message(role="user", content=parts),
        Message(role="system", content="i ski ."),
        Message(role="assistant", content="hello ."),
    ]
    assert read_turns(messages, system="leave-out") == ["hi\nthere", "hello ."]
    assert read_turns(messages, system="persona") == ["your persona: i ski .", "hi\nthere", "hello ."]


def test_calls_of_tools_and_their_answers_are_no_turns():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    answer = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    said = {"role": "user", "content": "rain ?"}
    assert Asked.model_validate({"messages": [said, call, answer]}).turns(system="persona") == ["rain ?"]
    documents = [{"type": "document", "document": {"data": "{}"}}]  # as Cohere's clients send
    for one in (answer | {"content": documents}, call | {"content": "\n"}):
        assert Asked.model_validate({"messages": [said, one]}).turns(system="persona") == ["rain ?"]
    for messages in ([call], [answer], [{"role": "system", "content": "i ski ."}, call]):
        with pytest.raises(InputError, match="messages has no message of the user"):
            _ = Asked.model_validate({"messages": messages}).turns(system="persona")
    with pytest.raises(ValidationError, match="content\n *Field required"):
        Asked.model_validate({"messages": [{"role": "user"}]})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "asked has no message of the user"),
        ([("system", "i ski .")], "asked has no message of the user"),
        ([("user", "hello"), ("user", " \n")], "asked: the last message has no text"),
    ],
)
def test_messages_that_ask_nothing(messages, message):
    with pytest.raises(InputError, match=message) as error:
        read_turns([Message(role=role, content=content) for role, content in messages], name="asked", system="persona")
    assert error.value.argument == "asked"


def test_a_context_is_a_query_or_messages():
    said = [{"role": "user", "content": "hello"}]
    for body in ({"query": "hello"}, {"query": said}, {"messages": said}):
        assert Asked.model_validate(body).turns(system="persona") == ["hello"]
    for body in ({}, {"query": "hello", "messages": said}):
        with pytest.raises(ValidationError, match="give either query or messages"):
            Asked.model_validate(body)
    with pytest.raises(InputError, match="query has no message of the user"):
        _ = Asked.model_validate({"query": []}).turns(system="persona")


def test_answers_have_ids_of_their_own():
    one, other = (answer_fields("rerank", model="m", tokens=7) for _ in range(2))
    assert one["id"] != other["id"]
    assert one["id"].startswith("rerank-")
    assert one["usage"] == Usage(prompt_tokens=7, total_tokens=7)
