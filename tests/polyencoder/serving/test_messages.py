"""Schemas of requests: what they take, and what they say of fields and texts that they do not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from polyencoder.errors import InputError
from polyencoder.serving.messages import ContextRequest, Message, Usage, build_answer_fields, read_turns


def collect_turns(*messages) -> list[str]:
    return ContextRequest.model_validate({"messages": messages}).collect_turns(system="persona")


def test_calls_of_tools_and_their_answers_are_no_turns():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    answer = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    question = {"role": "user", "content": "rain ?"}
    assert collect_turns(question, call, answer) == ["rain ?"]
    documents = [{"type": "document", "document": {"data": "{}"}}]  # as Cohere's clients send
    for message in (answer | {"content": documents}, call | {"content": "\n"}):
        assert collect_turns(question, message) == ["rain ?"]
    for messages in ([call], [answer], [{"role": "system", "content": "i ski ."}, call]):
        with pytest.raises(InputError, match="messages has no message of the user"):
            collect_turns(*messages)
    with pytest.raises(ValidationError, match="content\n *Field required"):
        ContextRequest.model_validate({"messages": [{"role": "user"}]})


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


def test_answers_have_ids_of_their_own():
    first, second = (build_answer_fields("rerank", model="m", tokens=7) for _ in range(2))
    assert first["id"] != second["id"]
    assert first["id"].startswith("rerank-")
    assert first["usage"] == Usage(prompt_tokens=7, total_tokens=7)
