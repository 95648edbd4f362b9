"""What a context may be, and the turns that it becomes."""

from __future__ import annotations

import pytest

from polyencoder.errors import InputError
from polyencoder.text.dialogue import check_context, check_contexts, format_persona, warn_of_system_messages

CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "system", "content": "i ski .\nyour persona: i read ."},
    {"role": "assistant", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}]},
]
TURNS = ["hi", "hello\nyou"]


@pytest.mark.parametrize("value", ["hi", ["hi", "", "you"], ("hi", " "), CHAT])
def test_turns(value):
    expected = ["hi"] if value == "hi" else TURNS if value is CHAT else list(value)
    assert check_context("context", value) == expected
    assert check_contexts([value]) == [expected]
    persona = ["your persona: i ski .", "your persona: i read ."] if value is CHAT else []
    assert check_context("context", value, system="persona") == [*persona, *expected]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"role": "bot", "content": "x"}], "context, message 0 is .*bot.*; it must be .* one of the roles system"),
        ([{"role": "tool", "content": "x"}], "context is empty"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "context, message 0, content is None"),
        ([*CHAT, "hi"], "context, message 3 is 'hi'"),
        ([{"role": "user", "content": None}], "context, message 0, content is None"),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            "content is a list with {'type': 'image'} .dict.: leave out all but texts",
        ),
        ([{"role": "user", "content": " "}], "context is empty"),
        ({"role": "user", "content": "x"}, "context is .*; it must be a list of turns or messages, or one text"),
        ([], "context is empty"),
        ([1], "context, turn 0 is 1"),
    ],
)
def test_what_is_no_context(value, message):
    with pytest.raises(InputError, match=message):
        check_context("context", value)


def test_messages_are_one_context():
    with pytest.raises(InputError, match="context 0 is .*; it must be a list of turns or messages, or one text"):
        check_contexts(CHAT)


def test_calls_of_tools_and_their_answers_are_no_turns():
    call = [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]
    text = {"type": "text", "text": " "}
    messages = [
        {"role": "user", "content": "rain ?"},
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "tool", "tool_call_id": "1", "content": '{"rain": true}'},
        {"role": "assistant", "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": "{}"},
        *({"role": "assistant", "content": blank, "tool_calls": call} for blank in ("", "\n\n", [], [text])),
        {"role": "assistant", "content": "yes , shall i book a train ?", "tool_calls": call},
    ]
    assert check_context("context", messages) == ["rain ?", "yes , shall i book a train ?"]
    with pytest.raises(InputError, match="context, message 0, content is "):
        check_context("context", [{"role": "assistant", "content": [text, {"type": "image"}], "tool_calls": call}])


def test_a_persona():
    assert format_persona("i ski .\n\ni read .") == ["your persona: i ski .", "your persona: i read ."]
    assert format_persona(None) == []


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_rankers_take_messages_wherever_they_take_turns(make_ranker, sentences, architecture):
    ranker = make_ranker(architecture)
    assert ranker.rank(CHAT, sentences) == ranker.rank(TURNS, sentences)
    assert ranker.score([CHAT], sentences).tolist() == ranker.score([TURNS], sentences).tolist()
    if architecture == "poly":
        index = ranker.index(sentences)
        assert ranker.search(CHAT, index) == ranker.search(TURNS, index)
        cross = make_ranker("cross")
        assert ranker.search(CHAT, index, rerank=cross) == ranker.search(TURNS, index, rerank=cross)


def test_a_warning_says_once_that_system_messages_are_left_out(caplog):
    warn_of_system_messages.cache_clear()
    chat = [{"role": "system", "content": "be brief ."}, {"role": "user", "content": "hi"}]
    for _ in range(2):
        assert check_contexts([chat, "hello"]) == [["hi"], ["hello"]]
    (warning,) = caplog.messages
    assert "system messages" in warning
